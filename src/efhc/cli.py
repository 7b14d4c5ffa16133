"""The command line: parse, call, print. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from efhc import __version__
from efhc.core.errors import EfhcError, InputError, did_you_mean, within

if TYPE_CHECKING:
    from efhc.experiments.config import Experiment
    from efhc.experiments.execute import Progress
    from efhc.experiments.result import Result
    from efhc.learning.data.store import Archive

app = typer.Typer(
    help="Decentralized federated learning with personalized event-triggered communication (EF-HC).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Show a complete config, or the schema of config files.", no_args_is_help=True)
data_app = typer.Typer(help="List, fetch and verify data sets; show who holds what.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")

console = Console()
debugging = False

Overrides = Annotated[list[str] | None, typer.Argument(help="key.sub=value ...", metavar="[OVERRIDES]...")]
INTERRUPTED = 130
FIGURES = (".png", ".pdf", ".svg")
MOST_ROWS = 100
"""A table with more devices than this ends there."""

UsageError: Any = typer.BadParameter.__base__  # typer does not export it by name


def main() -> None:
    """Errors that the user can mend are one line and exit code 2; `--debug` shows where they came from."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # asked to end: stop as with Ctrl-C
    try:
        sys.exit(app(standalone_mode=False))
    except (EfhcError, UsageError) as error:
        if debugging:
            raise
        if type(error).__name__ != "NoArgsIsHelpError":  # then the help is printed already
            text = error.format_message() if isinstance(error, UsageError) else str(error)
            print(f"efhc: {' '.join(text.split())}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        print("efhc: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"efhc {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    global debugging  # noqa: PLW0603 - one process, one command line
    debugging = debug


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to keep the results.")] = Path("runs/demo"),
) -> None:
    """EF-HC against GT, ZT and RG on the digits, in under a minute: a table and the paper's four panels."""
    from efhc.experiments.demo import BUDGET, EXPERIMENT, RUNS, run_demo

    with _progress(RUNS * EXPERIMENT.iterations) as progress:
        result, at_budget, figure = run_demo(out, progress)
    _print_summary(result)
    means = at_budget.group_by("strategy", maintain_order=True).mean().select("strategy", "accuracy").rows()
    console.print(f"Accuracy when {BUDGET:.0%} of ZT's transmission time is spent:", end=" ")
    console.print(", ".join(f"{strategy} {accuracy:.3f}" for strategy, accuracy in means))
    efhc, config = _this_command(), shlex.quote(str(out / "config.toml"))
    print(f"\nThe paper's four panels: {figure}")
    print(f"All results:             {out}")
    console.print("\nTry next:", style="bold")
    print(f"  {efhc} run {config} strategies.EF-HC.r=500 --out runs/smaller-threshold")
    print(f"  {efhc} run {config} network.kind=random-links --out runs/links-that-fail")
    print(f"  {efhc} config show            every setting and its default")


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run directory; by default runs/NAME-OF-FILE.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that was stopped there.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cores to use; by default all.")] = None,
) -> None:
    """Run an experiment and keep it in a run directory."""
    out = out or Path("runs") / file.stem
    try:
        from efhc.experiments.config_files import load_experiment
        from efhc.experiments.execute import simulate

        experiment = load_experiment(file, overrides or ())
        if resume and not _holds_run(out):
            print(f"efhc: there is no run in {out} to go on with; it is begun", file=sys.stderr)
        _fetch_missing(experiment)
        with _progress(len(experiment.seeds) * len(experiment.strategies) * experiment.iterations) as progress:
            result = simulate(experiment, out=out, resume=resume, progress=progress, jobs=jobs)
    except KeyboardInterrupt:
        words = shlex.join(["run", str(file), *(overrides or ()), "--out", str(out), "--resume"])
        go_on = f"go on with: {_this_command()} {words}" if _holds_run(out) else "nothing was written"
        print(f"efhc: stopped; {go_on}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    _print_summary(result)
    print(f"\nResults: {out}, figure: {out / 'figures' / 'comparison.png'}")


@config_app.command("show")
def config_show(
    file: Annotated[Path | None, typer.Argument(help="A TOML file; without one, the defaults.")] = None,
    overrides: Overrides = None,
) -> None:
    """Print the complete config: what the file says, the overrides, and every default."""
    from efhc.experiments.config_files import build_experiment, load_experiment, to_toml, with_overrides

    if file and "=" in str(file) and not file.exists():
        file, overrides = None, [str(file), *(overrides or ())]
    experiment = (
        load_experiment(file, overrides or ()) if file else build_experiment(with_overrides({}, overrides or ()))
    )
    print(to_toml(experiment), end="")


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of config files, for editors and checkers."""
    import json

    from efhc.experiments.config_files import json_schema

    print(json.dumps(json_schema(), indent=2))


@data_app.command("list")
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


@data_app.command("fetch")
def data_fetch(name: Annotated[str, typer.Argument(help="The data set.")]) -> None:
    """Download a data set into the user's cache; every file is checked by its SHA-256."""
    _fetch(_archive(name))


@data_app.command("verify")
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


@data_app.command("show")
def data_show(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The figure; by default runs/NAME-OF-FILE-partition.png.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="By default the first of the experiment.")] = None,
) -> None:
    """Which device holds which labels: a figure and a table."""
    from efhc.core.randomness import Randomness
    from efhc.experiments.config_files import load_experiment
    from efhc.report.figures import save_figure
    from efhc.report.partition_figure import label_counts, partition_figure

    out = out or Path("runs") / f"{file.stem}-partition.png"
    if out.suffix not in FIGURES:
        raise InputError("--out", out, f"a file that ends in {', '.join(FIGURES)}")
    experiment = load_experiment(file, overrides or ())
    seed = experiment.seeds[0] if seed is None else seed
    _fetch_missing(experiment)
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


@app.command()
def doctor() -> None:
    """Check this installation: versions, machine, data, and the engine against Alg. 1 in plain loops."""
    from efhc.experiments.doctor import checks

    table = Table("check", "", "found")
    healthy = True
    for name, good, found in checks():
        healthy &= good
        table.add_row(name, "[green]ok[/green]" if good else "[red]bad[/red]", found)
    console.print(table)
    if not healthy:
        raise typer.Exit(1)


@app.command()
def bench(
    workloads: Annotated[
        list[str] | None, typer.Argument(help="Which ones, or `limit`, or `scaling`; by default all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds by turns; the median counts.")] = 5,
    out: Annotated[Path, typer.Option(help="The picture that `scaling` draws.")] = Path("runs/scaling.png"),
) -> None:
    """Measure our iterations against the plain per-device PyTorch loop, by turns in one process."""
    from rich.status import Status

    from efhc.benchmarks import run as benches

    with Status("measuring", console=Console(stderr=True)) as status:

        def tell(what: str) -> None:
            status.update(f"measuring {what}")

        if workloads == ["limit"]:
            found, tables = benches.bench_limit(rounds), benches.limit_table
        elif workloads == ["scaling"]:
            found, tables = benches.bench_scaling(rounds, out, tell), benches.scaling_table
        else:
            found, tables = benches.bench(workloads or (), rounds, tell), benches.bench_table
    if as_json:
        import json

        print(json.dumps(found, indent=2))
        return
    rows = tables(found)
    table = Table(*rows[0])
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)


def _this_command() -> str:
    """How the user can call this command: by its name if it is on the path, else as it was called."""
    if shutil.which("efhc"):
        return "efhc"
    called = Path(sys.argv[0])
    return shlex.join([sys.executable, "-m", "efhc"] if called.name == "__main__.py" else [str(called)])


def _holds_run(out: Path) -> bool:
    return os.path.exists(out / "config.toml")  # noqa: PTH110 - unlike Path.exists, it never fails


def _archive(name: str) -> Archive:
    from efhc.learning.data import ARCHIVES

    if name == "digits":
        raise InputError("data set", "digits, which comes with scikit-learn", "data sets with files of their own")
    if name not in ARCHIVES:
        raise InputError("data set", f"'{name}'{did_you_mean(name, ARCHIVES)}", ", ".join(ARCHIVES))
    return ARCHIVES[name]


def _fetch_missing(experiment: Experiment) -> None:
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


@contextmanager
def _progress(iterations: int) -> Iterator[Progress]:
    """A bar over all iterations of all runs, told often enough to be smooth and seldom enough to cost nothing."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task("preparing", total=iterations)
        last: dict[tuple[str, int], int] = {}

        def progress(strategy: str, seed: int, done: int) -> None:
            step = 0 if done == 0 else done - last.get((strategy, seed), 0)
            if step >= 20 or done == 0:
                last[strategy, seed] = done
                bars.update(task, advance=step, description=escape(f"{strategy}, seed {seed}"))

        yield progress
        bars.update(task, completed=iterations, description="done")


def _print_summary(result: Result) -> None:
    seeds = len(result.experiment.seeds)
    table = Table(
        title=escape(f"{result.experiment.name}: means over {seeds} seed{'s' if seeds > 1 else ''}"),
        title_justify="left",
    )
    table.add_column("strategy")
    for name in ("accuracy", "worst seed", "of mean model", "fire", "total time", "consensus error"):
        table.add_column(name, justify="right")
    for strategy, accuracy, worst, mean_model, firing, time, error in result.summary().rows():
        table.add_row(
            strategy,
            f"{accuracy:.3f}",
            f"{worst:.3f}",
            f"{mean_model:.3f}",
            f"{firing:.1%}",
            f"{time:.4g}",
            f"{error:.3g}",
        )
    console.print(table)
