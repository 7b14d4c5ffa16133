"""efhc data: list, fetch and verify data sets, and show which device holds which labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efhc.base.errors import InputError, did_you_mean, within
from efhc.base.extras import EXTRAS, require
from efhc.cli.terminal import (
    ExperimentFile,
    Overrides,
    argument,
    console,
    option,
    plain,
    print_table,
    require_figure,
    warn,
)

if TYPE_CHECKING:
    from efhc.experiments.config.experiment import Experiment
    from efhc.learning.data import Dataset
    from efhc.learning.data.archives import Archive
    from efhc.learning.data.dataset import Column

app = typer.Typer(name="data", help="List, fetch, verify and show data sets.", no_args_is_help=True)

OWN = {
    "csv": 'data.path = "FILE.csv", data.label = "COLUMN"',
    "huggingface": 'data.path = "FOLDER" or data.name = "NAME"; it is never downloaded',
    "image-folder": 'data.path = "FOLDER"',
    "npz": 'data.path = "FILE.npz"',
    "parquet": 'data.path = "FILE.parquet", data.label = "COLUMN"',
}
"""Kinds of data that users bring, and the settings that they need."""
MOST_ROWS = 100
"""The largest number of devices that a table shows."""
MOST_NAMES = 20
"""The largest number of columns that are named."""


@app.command("list")
def data_list() -> None:
    """List data sets: where each is on this machine, or how to get it."""
    from efhc.learning.data import ARCHIVES

    rows = [("digits", "efhc", "ships with efhc")]
    for archive in ARCHIVES.values():
        found = archive.find()
        where, text = (found.name, str(found.folder)) if found else ("missing", archive.source)
        rows.append((archive.name, where, text))
    rows += [(kind, "your own", f'data.kind = "{kind}", {settings}') for kind, settings in OWN.items()]
    print_table(("name", "where", "path, or how to get it"), rows)


@app.command("fetch")
def data_fetch(
    name: Annotated[str, argument("NAME", "The data set; `efhc data list` shows all.")],
) -> None:
    """Download a data set into the user's cache.

    The files are checked against their published SHA-256.
    """
    from efhc.learning.data.archives import Download

    if name == "digits":
        raise InputError("data set", name, "another", "digits ships with efhc and needs no download.")
    _fetch(_archive(name, suggested=Download))


@app.command("verify")
def data_verify(
    name: Annotated[str, argument("NAME", "The data set; `efhc data list` shows all.")],
    path: Annotated[
        Path | None, option("FOLDER", "The folder of the copy, as in data.path. Default: the copy that a run finds.")
    ] = None,
) -> None:
    """Read the copy that a run would use and show its checksums.

    The last lines say what the SHA-256 of each file was compared with.
    """
    from efhc.learning.data import STORED

    if name == "digits":
        data, compared = _verified_digits(path), "ships with efhc; its SHA-256 equals the one that efhc knows"
    else:
        archive = _archive(name)
        found = archive.find(path)
        if not found:
            problem = f"{name} is not on this machine. To get it: {archive.source}"
            raise InputError("data set", name, "a data set on this machine", problem)
        data = STORED[name](path=path).load()
        compared = f"{found.folder}: {len(data.sha256)} files; {archive.compared(found)}"
    for file, checksum in data.sha256.items():
        print(plain(f"{checksum}  {file}"))
    print(plain(compared))
    print(f"{len(data.y_train)} training samples, {len(data.y_test)} test samples, {data.classes} classes")


@app.command("show")
def data_show(
    file: ExperimentFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, option("FILE", "The figure. Default: runs/NAME-OF-FILE-partition.png.")] = None,
    seed: Annotated[int | None, option("N", "The seed. Default: the first seed of the experiment.", min=0)] = None,
) -> None:
    """Show which device holds which labels and groups.

    The output is a figure and tables: samples by device, and what became of columns
    with missing values or categories.
    """
    from efhc.core.randomness import Randomness
    from efhc.experiments.config.files import load_experiment
    from efhc.experiments.runs.draw import load_data
    from efhc.learning.own_distribution import OwnDistributions
    from efhc.report.figures import save_figure
    from efhc.report.figures.studies import label_counts, partition_figure

    out = out or Path("runs") / f"{file.stem}-partition.png"
    require_figure(out)
    experiment = load_experiment(file, overrides or ())
    seed = experiment.seeds[0] if seed is None else seed
    fetch_missing(experiment)
    data = load_data(experiment)
    with within("partition"):
        parts = experiment.partition.split(data, experiment.devices, Randomness(seed))
    counts = label_counts(data, parts)
    kind = getattr(experiment.partition, "kind", type(experiment.partition).__name__)
    title = plain(f"{experiment.name}: {data.name}, {kind} partition, seed {seed}")
    names = [plain(name) for name in data.label_names] if data.has_classes else ["samples"]
    save_figure(partition_figure(counts, names, title), out)
    rows = []
    for device, (row, part) in enumerate(zip(counts[:MOST_ROWS], parts, strict=False)):
        held = [names[label] for label in (-row).argsort(kind="stable") if row[label]]
        groups = [] if data.groups is None else [len(set(data.groups[part].tolist()))]
        rows.append([device, row.sum(), *groups, len(held), _first(held, 10)])
    columns = ("device", "samples", *(() if data.groups is None else ("groups",)), "labels", "most samples of")
    print_table(columns, rows, title)
    if len(counts) > MOST_ROWS:
        print(f"... and {len(counts) - MOST_ROWS} more devices")
    own = OwnDistributions.of(data, parts, experiment.partition)
    covered = int((own.coverage == 1).sum())
    print(f"Own test data: all {own.by}s of {covered} of {len(parts)} devices are in the test set")
    _show_columns(data.columns)
    if any(data.dropped):
        train, test = data.dropped
        print(f"Dropped for a missing value: {train} training and {test} test samples")
    for what, columns in (("Features", data.feature_names), ("Unused columns", data.unused)):
        if columns:
            print(plain(f"{what} ({len(columns)}): {_first(columns, MOST_NAMES)}"))
    is_free = all(getattr(experiment.data, name, "") is None for name in ("split", "test_path"))
    if is_free and any(name.partition("=")[0] == "split" for name in (*data.feature_names, *data.unused)):
        warn('the column split does not choose the test samples; data.split = "split" makes it')
    print(plain(f"Figure: {out}"))


def _show_columns(columns: Sequence[Column]) -> None:
    """Print what became of the columns of categories and of those with missing values."""
    changed = [one for one in columns if one.levels or one.missing or one.missing_in_test]
    rows = [
        (
            plain(one.name),
            "categories" if one.levels else "numbers",
            one.missing,
            one.missing_in_test,
            plain(one.filled_with) or "-",
            plain(f"{len(one.levels)}: {_first(one.levels, 10)}") if one.levels else "-",
            one.unseen,
        )
        for one in changed[:MOST_ROWS]
    ]
    if rows:
        heads = ("column", "kind", "missing", "in test", "filled with", "levels", "others in test")
        print_table(heads, rows, "Columns with categories or missing values")
    if len(changed) > MOST_ROWS:
        print(f"... and {len(changed) - MOST_ROWS} more columns")


def _first(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _verified_digits(path: Path | None) -> Dataset:
    from efhc.learning.data import Digits
    from efhc.learning.data.images import DIGITS_SHA256

    if path is not None:
        raise InputError("--path", path, "no path", "digits ships with efhc. Leave --path out.")
    data = Digits().load()
    (found,) = data.sha256.values()
    if found != DIGITS_SHA256:
        allowed = f"{DIGITS_SHA256[:12]}...; reinstall efhc"
        raise InputError("digits", f"pixels and labels with SHA-256 {found[:12]}...", allowed)
    return data


def _archive(name: str, suggested: type | None = None) -> Archive:
    """Return the archive of this name. For an unknown name, archives of the type `suggested` are suggested."""
    from efhc.learning.data import ARCHIVES

    if name not in ARCHIVES:
        known = [key for key, archive in ARCHIVES.items() if suggested is None or isinstance(archive, suggested)]
        raise InputError("data set", f"'{name}'{did_you_mean(name, known)}", ", ".join(known))
    return ARCHIVES[name]


def fetch_data(*experiments: Experiment) -> None:
    """Download data that are missing. Raises an `EfhcError` before if a model or tracker needs a missing package."""
    from efhc.base.own_code import is_built_in
    from efhc.learning.models import ModuleModel

    if any(isinstance(experiment.model, ModuleModel) for experiment in experiments):
        require("deep")
    for tracker in (one for experiment in experiments for one in experiment.log):
        if is_built_in(tracker) and (kind := getattr(tracker, "kind", "")) in EXTRAS:
            require(kind)
    for experiment in experiments:
        fetch_missing(experiment)


def fetch_missing(experiment: Experiment) -> None:
    """Download the data of the experiment if they are missing on this machine and have a download."""
    from efhc.learning.data.archives import StoredData

    if isinstance(experiment.data, StoredData):
        with within("data"):
            found = experiment.data.archive.find(experiment.data.path)
        if not found:
            _fetch(experiment.data.archive)


def _fetch(archive: Archive) -> None:
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=done, total=total or None)

        folder = archive.fetch(show)
    print(plain(f"{archive.name} is in {folder}"))
