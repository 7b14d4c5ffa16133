"""efhc data: list, fetch and verify data sets, and show which device holds which labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from efhc.base.errors import InputError, did_you_mean, printable, within
from efhc.base.extras import require
from efhc.cli.terminal import ExperimentFile, Overrides, argument, console, option, titled_table

if TYPE_CHECKING:
    from efhc.experiments.config.experiment import Experiment
    from efhc.learning.data.archives import Archive

app = typer.Typer(help="List, fetch and verify data sets; show which device holds which labels.", no_args_is_help=True)

FIGURES = (".png", ".pdf", ".svg")
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

    table = Table("name", "where", "path, or how to get it")
    table.add_row("digits", "efhc", "ships with efhc")
    for archive in ARCHIVES.values():
        found = archive.find()
        where, text = (found.name, str(found.folder)) if found else ("missing", archive.source)
        table.add_row(archive.name, where, escape(printable(text)))
    for kind, settings in OWN.items():
        table.add_row(kind, "your own", f'data.kind = "{kind}", {settings}')
    console.print(table)


@app.command("fetch")
def data_fetch(
    name: Annotated[str, argument("NAME", "The data set; `efhc data list` shows all.")],
) -> None:
    """Download a data set into the user's cache.

    It is checked by its published SHA-256.
    """
    from efhc.learning.data.archives import Download

    if name == "digits":
        raise InputError("data set", name, "another", "digits ships with efhc and needs no download.")
    _fetch(_archive(name, suggested=Download))


@app.command("verify")
def data_verify(
    name: Annotated[str, argument("NAME", "The data set; `efhc data list` shows all.")],
    path: Annotated[
        Path | None, option("FOLDER", "A folder of your own, as in data.path. Default: where a run finds it.")
    ] = None,
) -> None:
    """Read the copy that a run would use and show its checksums.

    The last lines say what the SHA-256 of each file was compared with.
    """
    from efhc.learning.data import STORED

    if name == "digits":
        _verify_digits(path)
        return
    archive = _archive(name)
    found = archive.find(path)
    if not found:
        problem = f"{name} is not on this machine. To get it: {archive.source}"
        raise InputError("data set", name, "a data set on this machine", problem)
    data = STORED[name](path=path).load()
    for file, checksum in data.sha256.items():
        print(printable(f"{checksum}  {file}"))
    print(printable(f"{found.folder}: {len(data.sha256)} files; {archive.compared(found)}"))
    print(f"{len(data.y_train)} training samples, {len(data.y_test)} test samples, {data.classes} classes")


@app.command("show")
def data_show(
    file: ExperimentFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, option("FILE", "The figure. Default: runs/NAME-OF-FILE-partition.png.")] = None,
    seed: Annotated[int | None, option("N", "The seed. Default: the first seed of the experiment.", min=0)] = None,
) -> None:
    """Show which device holds which labels and groups.

    The output is a figure and a table.
    """
    from efhc.core.randomness import Randomness
    from efhc.experiments.config.files import load_experiment
    from efhc.experiments.runs.draw import load_data
    from efhc.report.figures import save_figure
    from efhc.report.figures.studies import label_counts, partition_figure

    out = out or Path("runs") / f"{file.stem}-partition.png"
    if out.suffix not in FIGURES:
        raise InputError("--out", out, f"a file that ends in {', '.join(FIGURES)}")
    experiment = load_experiment(file, overrides or ())
    seed = experiment.seeds[0] if seed is None else seed
    fetch_missing(experiment)
    data = load_data(experiment)
    with within("partition"):
        parts = experiment.partition.split(data, experiment.devices, Randomness(seed))
    counts = label_counts(data, parts)
    kind = getattr(experiment.partition, "kind", type(experiment.partition).__name__)
    title = printable(f"{data.name}: {kind} partition, seed {seed}")
    names = [printable(name) for name in data.label_names]
    save_figure(partition_figure(counts, names, title), out)
    groups = [] if data.groups is None else ["groups"]
    table = titled_table("device", "samples", *groups, "labels", "most samples of", title=escape(title))
    for device, (row, part) in enumerate(zip(counts[:MOST_ROWS], parts, strict=False)):
        held = [escape(names[label]) for label in (-row).argsort(kind="stable") if row[label]]
        shown = ", ".join(held[:10]) + (", ..." if len(held) > 10 else "")
        of_groups = [] if data.groups is None else [str(len(set(data.groups[part].tolist())))]
        table.add_row(str(device), str(row.sum()), *of_groups, str(len(held)), shown)
    console.print(table)
    if len(counts) > MOST_ROWS:
        print(f"... and {len(counts) - MOST_ROWS} more devices")
    for what, columns in (("Features", data.feature_names), ("Unused columns", data.unused)):
        if columns:
            listed = ", ".join(columns[:MOST_NAMES]) + (", ..." if len(columns) > MOST_NAMES else "")
            print(printable(f"{what} ({len(columns)}): {listed}"))
    print(printable(f"Figure: {out}"))


def _verify_digits(path: Path | None) -> None:
    from efhc.learning.data import Digits
    from efhc.learning.data.images import DIGITS_SHA256

    if path is not None:
        raise InputError("--path", path, "no path", "digits ships with efhc. Leave --path out.")
    data = Digits().load()
    (found,) = data.sha256.values()
    if found != DIGITS_SHA256:
        allowed = f"{DIGITS_SHA256[:12]}...; reinstall efhc"
        raise InputError("digits", f"pixels and labels with SHA-256 {found[:12]}...", allowed)
    print(f"{found}  digits")
    print("They ship with efhc; the SHA-256 of their pixels and labels equals the one that efhc knows")
    print(f"{len(data.y_train)} training samples, {len(data.y_test)} test samples, {data.classes} classes")


def _archive(name: str, suggested: type | None = None) -> Archive:
    """Return the archive of this name. For an unknown name, archives of the type `suggested` are suggested."""
    from efhc.learning.data import ARCHIVES

    if name not in ARCHIVES:
        known = [key for key, archive in ARCHIVES.items() if suggested is None or isinstance(archive, suggested)]
        raise InputError("data set", f"'{name}'{did_you_mean(name, known)}", ", ".join(known))
    return ARCHIVES[name]


def prepare(*experiments: Experiment) -> None:
    """Download data that are missing. Raises an `EfhcError` before if a model needs PyTorch, which is missing."""
    from efhc.learning.models import ModuleModel

    if any(isinstance(experiment.model, ModuleModel) for experiment in experiments):
        require("deep")
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
    print(printable(f"{archive.name} is in {folder}"))
