"""Trackers have the numbers of the tables, whatever happens to runs; and no tracker that fails harms a run."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
from read_back import Rows, finished_wandb_files, mlflow_rows, mlflow_runs, tensorboard_rows, wandb_rows

import efhc
from efhc.experiments.config.files import build_experiment
from efhc.experiments.runs.events import Begin, EndState, Follower
from efhc.experiments.runs.experiment_folder import ExperimentFolder
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.tracking import TIMEOUT, settings_of, tracking
from efhc.experiments.trackers.tensorboard import events_in
from efhc.experiments.trackers.tracker import Point, TrackedRun
from efhc.experiments.trackers.wandb import FINISH_SECONDS, INIT_SECONDS, offline_records
from efhc.learning.measures import CLASSIFICATION, measures_of

SMALL: dict[str, Any] = {
    "name": "small",
    "devices": 5,
    "iterations": 60,
    "evaluate_every": 20,
    "seeds": 3,
    "network": "complete",
    "strategies": {"EF-HC": efhc.EventTriggered(r=50.0), "ZT": efhc.ZeroThreshold()},
}
DRIVERS = ["lockstep", "event-driven"]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow uses what SQLAlchemy deprecates


@pytest.fixture(autouse=True)
def _as_set_up_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")


def evaluated(result: efhc.Result, strategy: str) -> Rows:
    """The rows of the tables that were evaluated, with the steps that trackers have."""
    lockstep = result.experiment.driver.kind == "lockstep"
    table = (result.metrics if lockstep else result.timeline).filter(pl.col("strategy") == strategy)
    rows = table.drop_nulls("accuracy").drop("strategy", "seed").iter_rows(named=True)
    return [
        (row["iteration"] + 1 if lockstep else row["steps"], {name: v for name, v in row.items() if v is not None})
        for row in rows
    ]


APART = {"seconds", "bits_total", "broadcasts_total"}
"""What followers hear of a run in lockstep besides the row of the table: wall time and totals."""


def check_equal(logged: Rows, table: Rows, *, exactly: bool = True) -> None:
    assert len(table) > 3
    assert [step for step, _ in logged] == [step for step, _ in table]
    for (_, has), (_, wants) in zip(logged, table, strict=True):
        assert has.keys() - APART == wants.keys() - APART
        for name, value in wants.items():
            assert has[name] == (value if exactly else np.float32(value)), name


@pytest.mark.slow
@pytest.mark.parametrize("driver", DRIVERS)
def test_every_tracker_has_the_rows_of_the_table(tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    database = out / "mlflow.db"
    if driver == "event-driven":
        database = tmp_path / "elsewhere.db"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    result = efhc.simulate(**SMALL, driver=driver, out=out, log=["tensorboard", "mlflow", "wandb"], warn=pytest.fail)
    assert (out / "mlflow.db").exists() == (driver == "lockstep")
    client, in_mlflow = mlflow_runs(database)
    runs, files = {run.info.run_name: run for run in in_mlflow}, {}
    for file in finished_wandb_files(out, at_least=2):
        (about,) = (record.run for record in offline_records(file) if record.HasField("run"))
        assert (about.project, about.run_group) == ("efhc", "small")
        files[about.display_name] = file
    assert runs.keys() == files.keys() == {"EF-HC.seed3", "ZT.seed3"}
    for name, run in runs.items():
        table = evaluated(result, name.removesuffix(".seed3"))
        check_equal(tensorboard_rows(out / "tensorboard" / name), table, exactly=False)
        check_equal(mlflow_rows(client, run), table)
        check_equal(wandb_rows([files[name]]), table)
        assert table[-1][1].keys() >= {*measures_of(CLASSIFICATION)}
        assert run.info.status == "FINISHED"
        assert run.data.params["devices"] == "5"
        assert client.get_experiment(run.info.experiment_id).name == "small"
    assert runs["EF-HC.seed3"].data.params["strategy.r"] == "50.0"


@pytest.mark.parametrize("name", ["small", "a/b", "../x", "{outside}/x"])
def test_the_event_files_of_an_experiment_are_in_one_folder_of_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "deep" / "here"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    runs = Runs().of(build_experiment(SMALL | {"name": name.format(outside=tmp_path), "log": "tensorboard"}))
    with tracking([runs[0].whole], None, pytest.fail) as followers:
        begun(followers, runs[0]).evaluated(rows_after(0, 1)[0])
        if name == "small":
            time.sleep(1.1)  # runs may begin at different seconds
        begun(followers, runs[1]).evaluated(rows_after(0, 1)[0])
    (folder,) = (here / "runs").iterdir()
    assert {one.name for one in folder.iterdir()} == {"EF-HC.seed3", "ZT.seed3"}
    assert all(file.is_relative_to(folder) for file in tmp_path.rglob("events.out.*"))


@pytest.mark.parametrize(("given", "metric", "shown"), [
    ("own_accuracy", "accuracy", "own_accuracy"), (None, "accuracy", "accuracy"),
    ("own_accuracy", "mean_squared_error", "mean_squared_error"),
])  # fmt: skip
def test_tensorboards_table_of_settings_has_the_measure(
    tmp_path: Path, given: str | None, metric: str, shown: str
) -> None:
    run = one_run("tensorboard", measure=given)
    row = dict.fromkeys(measures_of({metric: "higher"}), 0.5)
    with tracking([run.whole], tmp_path, pytest.fail) as followers:
        follower = begun(followers, run)
        follower.evaluated({"iteration": 0, **row})
        follower.end("done", None)
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    (folder,) = (tmp_path / "tensorboard").iterdir()
    values = (one for file in folder.iterdir() for event in events_in(file) for one in event.summary.value)
    of_table = [one.metadata.plugin_data.content for one in values if one.metadata.plugin_data.plugin_name == "hparams"]
    contents = [HParamsPluginData.FromString(content) for content in of_table]
    names = [one.name.tag for content in contents for one in content.experiment.metric_infos]
    assert names == [shown]
    ((_, logged),) = tensorboard_rows(folder)
    assert logged.keys() == {"iteration", *row}


def test_an_evaluation_of_several_iterations_is_one_point_also_if_the_run_stops_within_it(tmp_path: Path) -> None:
    class Kept(efhc.Tracker):
        points: ClassVar[list[Point]] = []

        def open(self, run: TrackedRun) -> Kept:
            return self

        def has(self, point: Point) -> bool:
            return point.step in [one.step for one in self.points]

        def add(self, points: Sequence[Point]) -> None:
            self.points.extend(points)

        def close(self, state: str, problem: str | None) -> None: ...

    run = one_run(Kept(), strategies={"local": {"kind": "periodic", "every": 2}})
    rows = [
        {"iteration": i, "evaluation": first, "accuracy": i / 16, "seconds": 0.1 * i}
        for i, first in ((0, 0), (5, 5), (8, 8), (9, 8))
    ]
    for sent, k in ((3, 0), (1, 9)):
        with tracking([run.whole], tmp_path, pytest.fail) as followers:
            follower = begun(followers, run, k)
            if k:
                follower.recalled(lambda: rows[:3])
            for row in rows[len(rows) - sent :] if k else rows[:sent]:
                follower.evaluated(row)
            follower.end("done" if k else "stopped", None)
    assert [(point.step, point.values["accuracy"]) for point in Kept.points] == [(1, 0.0), (6, 5 / 16), (10, 8.5 / 16)]


# Runs that stop


def rows_after(k: int, last: int) -> list[dict[str, float | int | None]]:
    return [{"iteration": i, "accuracy": i / 100, "train_loss": None, "seconds": 0.1 * i} for i in range(k, last)]


def one_run(log: Any, **fields: Any) -> Run:
    experiment = build_experiment(SMALL | fields | {"log": log})
    return Runs().of(experiment)[0]


def begun(followers: Sequence[Callable[[Run], Follower]], run: Run, k: int = 0) -> Follower:
    (factory,) = followers
    follower = factory(run)
    follower.begin(Begin.described(run, k, (650, 0), [1.0] * 5, []))
    return follower


def made(
    run: Run, folder: Path, k: int, last: int, state: EndState, problem: str | None = None, *, is_killed: bool = False
) -> None:
    """Follow a run from k to `last`; one that is killed does not end."""
    with tracking([run.whole], folder, pytest.fail) as followers:
        follower = begun(followers, run, k)
        if k > 0:
            follower.recalled(lambda: rows_after(0, k))
        for row in rows_after(k, last):
            follower.evaluated(row)
        if not is_killed:
            follower.end(state, problem)


def killed(kind: str, folder: Path, last: int) -> None:
    """Follow a run up to `last`, and not to its end. Of W&B a process has to be killed: it knows who is active."""
    if kind != "wandb":
        made(one_run(kind), folder, 0, last, "done", is_killed=True)
        return
    lines = f"""
import os, signal, time
from pathlib import Path
from test_trackers import made, one_run

made(one_run({kind!r}), Path({str(folder)!r}), 0, {last}, "done", is_killed=True)
time.sleep(2)  # W&B writes every second
os.kill(os.getpid(), signal.SIGKILL)
"""
    here = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, "-c", lines], env=os.environ | {"PYTHONPATH": here}, check=False)
    assert done.returncode == -signal.SIGKILL


def mlflow_run(folder: Path) -> tuple[Any, Any]:
    client, runs = mlflow_runs(folder / "mlflow.db")
    (run,) = (run for run in runs if run.info.status != "KILLED")
    return client, run


def wandb_sessions(folder: Path) -> int:
    return len(list((folder / "wandb").glob("offline-run-*")))


READ: dict[str, Callable[[Path], Rows]] = {
    "tensorboard": lambda folder: tensorboard_rows(folder / "tensorboard" / "EF-HC.seed3"),
    "mlflow": lambda folder: mlflow_rows(*mlflow_run(folder)),
    "wandb": lambda folder: wandb_rows(finished_wandb_files(folder, at_least=wandb_sessions(folder) - 1)),
}


@pytest.mark.parametrize(
    "kind",
    ["tensorboard", pytest.param("mlflow", marks=pytest.mark.slow), pytest.param("wandb", marks=pytest.mark.slow)],
)
def test_a_run_that_goes_on_is_one_run_without_doubled_rows(kind: str, tmp_path: Path) -> None:
    run, folder = one_run(kind), tmp_path / "it's mine"
    folder.mkdir()
    killed(kind, folder, 8)
    time.sleep(1.1 * (kind == "wandb"))  # it names its folders by the second
    made(run, folder, 5, 12, "stopped")
    time.sleep(1.1 * (kind == "wandb"))
    made(run, folder, 14, 16, "done")  # the two rows before were evaluated, and the process killed before it told
    logged = READ[kind](folder)
    assert [step for step, _ in logged] == list(range(1, 17))
    assert [row["iteration"] for _, row in logged] == list(range(16))
    if kind == "mlflow":
        assert mlflow_run(folder)[1].info.status == "FINISHED"
    if kind == "wandb":
        ids = {file.stem for file in (folder / "wandb").glob("offline-run-*/*.wandb")}
        assert len(ids) == 1


@pytest.mark.slow
def test_mlflow_tells_a_killed_run_from_a_failed_one(tmp_path: Path) -> None:
    killed("mlflow", tmp_path, 2)
    # It is begun again, since there was no checkpoint.
    made(one_run("mlflow"), tmp_path, 0, 3, "failed", "the models ran away")
    _, runs = mlflow_runs(tmp_path / "mlflow.db")
    assert {run.info.status: run.data.tags.get("efhc.problem") for run in runs} == {
        "KILLED": None,
        "FAILED": "the models ran away",
    }


# Trackers that fail


def test_a_tracker_that_is_not_installed_is_warned_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    warnings: list[str] = []
    result = efhc.simulate(**SMALL, out=tmp_path / "out", log="tensorboard", warn=warnings.append)
    assert warnings == [
        "log: tensorboard: the tracker tensorboard needs tensorboardX: install the extra [tensorboard] "
        "(docs/install.md); logging to it is off"
    ]
    assert len(result.metrics) == 2 * 60


@pytest.mark.slow
def test_a_server_that_is_not_there_is_warned_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://somebody:secret@127.0.0.1:{port}")
    warnings: list[str] = []
    efhc.simulate(**SMALL, out=tmp_path / "out", log="mlflow", warn=warnings.append)
    (warning,) = warnings
    assert warning.startswith(f"log: mlflow: MLflow at http://127.0.0.1:{port} cannot be reached (")
    assert "\n" not in warning


ASKED = """
import sys
import efhc

efhc.simulate(iterations=5, seeds=0, strategies={"ZT": efhc.ZeroThreshold()}, log="wandb", warn=print)
"""


@pytest.mark.slow
def test_wandb_never_asks_for_a_key(tmp_path: Path) -> None:
    environment = {**os.environ, "NETRC": str(tmp_path / "none"), "WANDB_CONFIG_DIR": str(tmp_path / "config")}
    del environment["WANDB_MODE"]
    terminal, typed = pty.openpty()  # it would ask on a terminal only
    done = subprocess.run(
        [sys.executable, "-c", ASKED],
        check=False,
        stdin=typed,
        stdout=typed,
        stderr=typed,
        env=environment,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 0
    shown = os.read(terminal, 10_000).decode()
    (line,) = (line for line in shown.splitlines() if line != "\x1b[0m")
    assert line.startswith("log: wandb: W&B has no API key: log in by `wandb login`, or set WANDB_MODE=offline")


class Troubled:
    """A tracker that fails as often as it is told."""

    kind = "troubled"

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.points: list[Point] = []
        self.ends: list[tuple[str, str | None]] = []
        self.runs: list[TrackedRun] = []

    def open(self, run: TrackedRun) -> Troubled:
        self.runs.append(run)
        return self

    def add(self, points: Sequence[Point]) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("come back later")
        self.points += points

    def close(self, state: str, problem: str | None) -> None:
        self.ends.append((state, problem))


def followed(tracker: Troubled, rows: int = 5, timeout: float = TIMEOUT) -> list[str]:
    """Follow a run of so many rows; returns the warnings."""
    run, warnings = one_run(tracker), list[str]()
    with tracking([run.whole], None, warnings.append, timeout=timeout) as followers:
        follower = begun(followers, run)
        for row in rows_after(0, rows):
            follower.evaluated(row)
            time.sleep(0.01)
        follower.end("done", None)
    return warnings


def test_what_a_tracker_could_not_log_it_gets_later() -> None:
    tracker = Troubled(2)
    assert followed(tracker) == ["log: troubled: ConnectionError: come back later; it is tried again later"]
    assert [point.step for point in tracker.points] == [1, 2, 3, 4, 5]
    assert [set(point.values) for point in tracker.points] == [{"iteration", "accuracy", "seconds"}] * 5
    assert tracker.ends == [("finished", None)]


class Leaves(Troubled):
    def open(self, run: TrackedRun) -> Troubled:
        sys.exit("no licence")


class LeavesLater(Troubled):
    def add(self, points: Sequence[Point]) -> None:
        sys.exit("no licence")


class Forgetful(Troubled):
    def open(self, run: TrackedRun) -> Troubled:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("tracker", "told"),
    [
        (Leaves(0), ["SystemExit: no licence; logging to it is off"]),
        (
            LeavesLater(0),
            ["SystemExit: no licence; it is tried again later", "2 rows of EF-HC.seed3 could not be logged"],
        ),
        (
            Troubled(1000),
            ["ConnectionError: come back later; it is tried again later", "2 rows of EF-HC.seed3 could not be logged"],
        ),
        (
            Forgetful(0),
            ["open returned 'None' instead of an object with the methods add and close; logging to it is off"],
        ),
    ],
)
def test_no_mistake_of_a_tracker_is_silent(tracker: Troubled, told: list[str]) -> None:
    assert followed(tracker, 2) == [f"log: troubled: {text}" for text in told]


def test_a_tracker_that_does_not_know_what_it_has_gets_no_row_twice() -> None:
    tracker = Troubled(0)
    run = one_run(tracker)
    with tracking([run.whole], None, pytest.fail) as followers:
        follower = begun(followers, run, 3)
        follower.recalled(lambda: rows_after(0, 3))
        follower.evaluated(rows_after(3, 4)[0])
        follower.end("done", None)
    assert [point.step for point in tracker.points] == [4]


def test_nobody_waits_for_a_tracker_for_ever() -> None:
    never = threading.Event()

    class Asleep(Troubled):
        kind = "asleep"

        def add(self, points: Sequence[Point]) -> None:
            never.wait()

    # It ends at all: the tracker never answers.
    assert followed(Asleep(0), timeout=0.3) == [
        "log: asleep has not answered for 0.3 s; the remaining rows are not logged"
    ]
    never.set()


def test_a_tracker_that_gets_on_slowly_in_the_end_is_waited_for() -> None:
    class Slow(Troubled):
        is_up = False

        def add(self, points: Sequence[Point]) -> None:
            if not self.is_up:
                raise ConnectionError("come back later")
            time.sleep(0.4)
            super().add(points)

    tracker, warnings = Slow(0), list[str]()
    runs = Runs().of(build_experiment(SMALL | {"seeds": [0, 1], "log": tracker}))
    with tracking([runs[0].whole], None, warnings.append, timeout=1.0) as followers:
        for run in runs:
            follower = begun(followers, run)
            follower.evaluated(rows_after(0, 1)[0])
            follower.end("done", None)
        time.sleep(0.3)
        tracker.is_up = True  # nothing else is told, so that all four are tried again in the end
    assert len(tracker.points) == len(tracker.ends) == 4
    assert warnings == ["log: troubled: ConnectionError: come back later; it is tried again later"]


def test_nobody_is_less_patient_than_wandb_itself() -> None:
    assert TIMEOUT > INIT_SECONDS + FINISH_SECONDS


# What is logged, and what it does not change


def test_the_setting_does_not_determine_a_run(tmp_path: Path) -> None:
    assert one_run(["tensorboard", "wandb"]).key == one_run([]).key
    tracker = Troubled(0)
    efhc.simulate(**SMALL, store=tmp_path / "store", out=tmp_path / "a")
    made_before = efhc.simulate(**SMALL, store=tmp_path / "store", out=tmp_path / "b", log="tensorboard")
    assert not (tmp_path / "b" / "tensorboard").exists()
    assert ExperimentFolder(tmp_path / "b").read_experiment().log == (efhc.TensorBoard(),)
    again = efhc.simulate(**SMALL, out=tmp_path / "b", resume=True)
    assert again.metrics.equals(made_before.metrics)
    efhc.simulate(**SMALL, log=tracker)
    assert {run.name for run in tracker.runs} == {"EF-HC.seed3", "ZT.seed3"}


def test_settings_have_plain_values_by_dotted_names() -> None:
    settings = settings_of(one_run("wandb"))
    assert settings["strategy.name"] == "EF-HC"
    assert settings["strategy.r"] == 50.0
    assert settings["network.kind"] == "complete"
    assert settings["seed"] == 3
    assert all(isinstance(value, str | int | float | bool) for value in settings.values())


def test_a_failed_run_is_logged_as_such() -> None:
    tracker = Troubled(0)
    with pytest.raises(efhc.EfhcError, match="diverged"):
        efhc.simulate(**SMALL, model="softmax", step_size={"kind": "constant", "value": 1e30}, log=tracker)
    assert {state for state, _ in tracker.ends} == {"failed"}


OWN = """
from pathlib import Path

import efhc


class Lines(efhc.Tracker):
    path: str

    def open(self, run):
        return Log(Path(self.path), run.name)


class Log:
    def __init__(self, path, name):
        self.path, self.name = path, name

    def add(self, points):
        with self.path.open("a") as file:
            file.writelines(f"{self.name} {point.step} {point.values['accuracy']!r}\\n" for point in points)

    def close(self, state, problem):
        with self.path.open("a") as file:
            file.write(f"{self.name} {state}\\n")
"""


def test_an_own_tracker_logs_from_a_config_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "run.toml").write_text(
        f'iterations = 40\nseeds = [0]\nlog = [{{ kind = "mine.py:Lines", path = "{tmp_path}/lines.txt" }}]\n'
        '[strategies]\nZT = "zt"\n'
    )
    result = efhc.simulate(efhc.load_experiment(tmp_path / "run.toml"), out=tmp_path / "out")
    lines = (tmp_path / "lines.txt").read_text().splitlines()
    assert lines == [*(f"ZT.seed0 {k} {row['accuracy']!r}" for k, row in evaluated(result, "ZT")), "ZT.seed0 finished"]
    with pytest.raises(efhc.InputError, match=r"log.*code in .*mine.py:Lines.*--trust-code"):
        ExperimentFolder(tmp_path / "out").load_experiment(trust_code=False)


HAS = """
    def has(self, point):
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return any(line.startswith(f"{self.name} {point.step} ") for line in lines)
"""


@pytest.mark.parametrize("driver", DRIVERS)
def test_rows_that_were_not_passed_on_come_when_their_run_goes_on(driver: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN + HAS)
    file = tmp_path / "not yet" / "lines.txt"  # nothing can be logged as long as its folder is not there
    log = [{"kind": f"{tmp_path}/mine.py:Lines", "path": str(file)}]
    strategies = {"EF-HC": efhc.EventTriggered(r=50.0)}
    fields = SMALL | {"strategies": strategies, "evaluate_every": 2, "driver": driver, "log": log}

    def interrupt(strategy: str, seed: int, done: int) -> None:
        if done >= 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(
            **fields, out=tmp_path / "out", progress=interrupt, warn=lambda text: None, checkpoint_seconds=0.0
        )
    file.parent.mkdir()
    result = efhc.simulate(**fields, out=tmp_path / "out", resume=True, warn=pytest.fail)
    rows = evaluated(result, "EF-HC")
    assert len(rows) >= 30
    logged = [f"EF-HC.seed3 {k} {row['accuracy']!r}" for k, row in rows]
    assert file.read_text().splitlines() == [*logged, "EF-HC.seed3 finished"]


STUDY = """
iterations = 20
seeds = [0]
evaluate_every = 20
[strategies]
EF-HC = { kind = "ef-hc", r = 50.0 }
ZT = "zt"
"""


@pytest.mark.slow
def test_studies_name_their_runs_apart(tmp_path: Path, command: Callable[..., Any]) -> None:
    (tmp_path / "mine.py").write_text(OWN.replace("path: str", f"path: str = '{tmp_path}/lines.txt'"))
    (tmp_path / "swept.toml").write_text(f"{STUDY}[sweep]\nstrategies.EF-HC.r = [20.0, 50.0]\n")
    (tmp_path / "figure.toml").write_text(f'{STUDY}[figure]\nnumber = "A"\ntitle = "digits"\n')

    def names(*words: str) -> set[str]:
        (tmp_path / "lines.txt").unlink(missing_ok=True)
        done = command(*words, "--log", "mine.py:Lines", "--out", words[0], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return {line.split()[0] for line in (tmp_path / "lines.txt").read_text().splitlines()}

    assert names("sweep", "swept.toml") == {"r=20.0/EF-HC.seed0", "r=50.0/EF-HC.seed0", "r=20.0/ZT.seed0"}
    assert names("reproduce", "figure.toml") == {"figure/EF-HC.seed0", "figure/ZT.seed0"}
    assert names("tune", "swept.toml", "--budget", "zt=50%", "--trials", "1") == {
        "ZT/ZT.seed0",
        "trial001/20/EF-HC.seed0",
        "winner/EF-HC.seed0",
    }


NO_TRAFFIC = """
import sys

asked = []
sys.addaudithook(lambda event, args: asked.append(args) if event in ("socket.connect", "socket.getaddrinfo") else None)
import efhc

efhc.simulate(iterations=5, seeds=0, strategies={"ZT": efhc.ZeroThreshold()}, out=sys.argv[1], log=sys.argv[2:])
import mlflow.telemetry

assert mlflow.telemetry.get_telemetry_client() is None
assert all(args[0].family.name == "AF_UNIX" or args[1][0] == "127.0.0.1" for args in asked), asked
"""


@pytest.mark.slow
def test_no_tracker_calls_home(tmp_path: Path) -> None:
    hidden = ("PYTEST_CURRENT_TEST", "CI", "DO_NOT_TRACK", "MLFLOW_DISABLE_TELEMETRY")  # MLflow is silent in tests
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-c", NO_TRAFFIC, str(tmp_path / "out"), "tensorboard", "mlflow", "wandb"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr == ""
