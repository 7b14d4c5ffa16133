"""efhc data: which data sets there are, where, and who holds what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from efhc.base.errors import InputError, did_you_mean, within
from efhc.cli.terminal import Overrides, console

if TYPE_CHECKING:
    from efhc.experiments.config.experiment import Experiment
    from efhc.learning.data.store import Archive

app = typer.Typer(help="List, fetch and verify data sets; show who holds what.", no_args_is_help=True)

FIGURES = (".png", ".pdf", ".svg")
MOST_ROWS = 100
"""A table with more devices than this ends there."""


@app.command("list")
def data_list() -> None:
    """Which data sets there are, and where on this machine."""
    from efhc.learning.data import ARCHIVES

    table = Table("name", "where", "path")
    table.add_row("digits", "scikit-learn", "installed with efhc")
    for archive in ARCHIVES.values():
        found = archive.find()
        table.add_row(
            archive.name, *((found[0], str(found[1])) if found else ("missing", f"efhc data fetch {archive.name}"))
        )
    table.add_row("image-folder", "your own", 'data.kind = "image-folder", data.path = "FOLDER"')
    table.add_row("npz", "your own", 'data.kind = "npz", data.path = "FILE.npz"')
    console.print(table)


@app.command("fetch")
def data_fetch(name: Annotated[str, typer.Argument(help="The data set.")]) -> None:
    """Download a data set into the user's cache; every file is checked by its SHA-256."""
    _fetch(_archive(name))


@app.command("verify")
def data_verify(
    name: Annotated[str, typer.Argument(help="The data set.")],
    path: Annotated[Path | None, typer.Option(help="A folder of your own, as data.path names it.")] = None,
) -> None:
    """Read the copy that would be used, file by file, and show the SHA-256 of each, checked where it is known."""
    from efhc.learning.data import STORED

    found = _archive(name).find(path)
    if not found:
        raise InputError(
            "data set", f"{name}, which is not on this machine", f"one that is; `efhc data fetch {name}` gets it"
        )
    data = STORED[name](path=path).load()
    for file, checksum in data.sha256.items():
        print(f"{checksum}  {file}")
    verdict = "your own copy, whose SHA-256 are not compared" if found.is_given else "all with the right SHA-256"
    print(f"{found.folder}: {len(data.sha256)} files, {verdict}")
    print(f"{len(data.y_train)} training samples, {len(data.y_test)} test samples, {data.classes} classes")


@app.command("show")
def data_show(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The figure; by default runs/NAME-OF-FILE-partition.png.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="By default the first of the experiment.")] = None,
) -> None:
    """Which device holds which labels: a figure and a table."""
    from efhc.core.randomness import Randomness
    from efhc.experiments.config.files import load_experiment
    from efhc.report.figures import save_figure
    from efhc.report.figures.partition_figure import label_counts, partition_figure

    out = out or Path("runs") / f"{file.stem}-partition.png"
    if out.suffix not in FIGURES:
        raise InputError("--out", out, f"a file that ends in {', '.join(FIGURES)}")
    experiment = load_experiment(file, overrides or ())
    seed = experiment.seeds[0] if seed is None else seed
    fetch_missing(experiment)
    with within("data"):
        data = experiment.data.load(experiment.precision)
    with within("partition"):
        parts = experiment.partition.split(data, experiment.devices, Randomness(seed))
    counts = label_counts(data, parts)
    title = f"{data.name}: {experiment.partition.kind} partition, seed {seed}"
    save_figure(partition_figure(counts, data.label_names, title), out)
    table = Table("device", "samples", "labels", "most samples of", title=escape(title), title_justify="left")
    for device, row in enumerate(counts[:MOST_ROWS]):
        held = [escape(data.label_names[label]) for label in (-row).argsort(kind="stable") if row[label]]
        names = ", ".join(held[:10]) + (", ..." if len(held) > 10 else "")
        table.add_row(str(device), str(row.sum()), str(len(held)), names)
    console.print(table)
    if len(counts) > MOST_ROWS:
        print(f"... and {len(counts) - MOST_ROWS} devices more")
    print(f"Figure: {out}")


def _archive(name: str) -> Archive:
    from efhc.learning.data import ARCHIVES

    if name == "digits":
        raise InputError("data set", "digits, which comes with scikit-learn", "data sets with files of their own")
    if name not in ARCHIVES:
        raise InputError("data set", f"'{name}'{did_you_mean(name, ARCHIVES)}", ", ".join(ARCHIVES))
    return ARCHIVES[name]


def fetch_missing(experiment: Experiment) -> None:
    """Download the experiment's data, if they can be and are not here yet."""
    from efhc.learning.data.store import StoredData

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
    print(f"{archive.name} is in {folder}")
