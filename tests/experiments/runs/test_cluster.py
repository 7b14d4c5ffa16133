"""Runs made by Ray: the same tables as made here, through lost workers and nodes; and one line for what goes wrong."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import pytest

import efhc
from efhc.core.state import Diverged
from efhc.experiments.runs.engines import cluster as engine
from efhc.experiments.runs.engines.cluster import ClusterEngine, make_there
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.events import Begin, EndState, Follower, Row
from efhc.experiments.runs.live_file import LIVE
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.store import RunStore
from efhc.experiments.runs.tables import LOCKSTEP

pytestmark = pytest.mark.slow

if find_spec("ray") is None and not os.environ.get("EFHC_REQUIRE_DATA"):
    pytest.skip("ray is not installed", allow_module_level=True)

EXAMPLES = Path(__file__).parents[3] / "examples"

WORKING = f"ray::{make_there.__name__}"
"""What Ray calls a process that makes a run."""


def silent(run: Run, share: float) -> None:
    pass


def runs_of(**fields: Any) -> list[Run]:
    return Runs().of(efhc.Experiment(**{"iterations": 20, "evaluate_every": 10, "devices": 6, "seeds": (0,)} | fields))


def assert_as_made_here(runs: list[Run], made: RunStore, folder: Path) -> None:
    """Bit for bit."""
    here = RunStore(folder)
    here.make_missing(runs, LocalEngine(), silent)
    for run in runs:
        for name in LOCKSTEP.names:
            table = f"{name}.parquet"
            assert (made.directory(run) / table).read_bytes() == (here.directory(run) / table).read_bytes()
        there, names = ({path.name for path in store.directory(run).iterdir()} for store in (made, here))
        assert there - {LIVE} == names - {LIVE}  # which a run that takes longer than a moment has
        a, b = made.meta(run), here.meta(run)
        for fact in ("status", "seeds", "data_sha256", "input_sha256", "table_sha256"):
            assert a[fact] == b[fact]
        config = made.directory(run) / "config.toml"
        assert config.read_bytes() == (here.directory(run) / "config.toml").read_bytes()


@pytest.fixture(scope="module", autouse=True)
def apart() -> Iterator[None]:
    """Ray's files in a folder of this module's own, a short one for the sake of sockets; and no token in ~/.ray."""
    with tempfile.TemporaryDirectory(prefix="efhc-", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("TMPDIR", folder)  # and what killed workers leave behind
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # a dozen processes of Ray's own would be measured
        yield


@dataclass(frozen=True)
class Nodes:
    """A cluster on this machine: a head that makes no runs, and as many nodes of one CPU as are wanted."""

    cluster: Any

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def of(self, count: int) -> list[Any]:
        while len(self.cluster.worker_nodes) > count:
            self.cluster.remove_node(next(iter(self.cluster.worker_nodes)))
        while len(self.cluster.worker_nodes) < count:
            self.cluster.add_node(num_cpus=1)
        self.cluster.wait_for_nodes()
        return list(self.cluster.worker_nodes)


@pytest.fixture(scope="module")
def nodes(apart: None) -> Iterator[Nodes]:
    engine._imported_ray()  # as the engine does it, before anybody else
    from ray.cluster_utils import Cluster

    # A node that does not answer is given up after 2.5 seconds, not 15.
    checks = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": checks}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield Nodes(cluster)
    finally:
        cluster.shutdown()


def descendants(pid: int) -> set[int]:
    """The processes that a process has started, and those that they have; by what Linux tells."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def is_working(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().startswith(WORKING)
    return False


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def workers_of(node: Any) -> list[int]:
    """The processes of a node that are making a run right now."""
    (raylet,) = node.all_processes["raylet"]
    return [pid for pid in descendants(raylet.process.pid) if is_working(pid)]


def wait_for(condition: Any, seconds: float = 30.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return value


@pytest.fixture
def own_ray(nodes: Nodes) -> Iterator[Any]:
    """A process that has called ray.init itself, and will go on with it."""
    import ray

    nodes.of(1)
    ray.init(nodes.address, **engine.QUIET)
    yield ray
    ray.shutdown()


@pytest.fixture
def no_runs(tmp_path) -> Any:
    """Asks an engine for runs that it will not come to make."""

    def ask(maker: ClusterEngine) -> str:
        runs, _ = runs_of(), engine._imported_ray()
        with pytest.raises(efhc.InputError) as caught:
            RunStore(tmp_path / "none").make_missing(runs, maker, silent)
        assert not (tmp_path / "none").exists() or list((tmp_path / "none").iterdir()) == []
        return str(caught.value)

    return ask


# Made here or there


class Heard(Follower):
    """What followers hear of runs that come back from a cluster."""

    all: ClassVar[list[Heard]] = []

    def __init__(self, run: Run) -> None:
        self.run, self.rows, self.ended = run, list[Row](), "not yet"
        self.all.append(self)

    def begin(self, run: Begin) -> None:
        assert run.k == 0
        self.about = run

    def evaluated(self, row: Row) -> None:
        self.rows.append(row)

    def end(self, state: EndState, problem: str | None) -> None:
        self.ended = state


def test_ray_on_this_machine_makes_the_tables_that_are_made_here(tmp_path):
    runs = [
        *runs_of(seeds=(0, 1)),
        *runs_of(model=efhc.Softmax(), precision="float64", strategies={"RG": efhc.RandomizedGossip()}),
    ]
    import ray

    store, told = RunStore(tmp_path / "ray"), []
    before, engine = signal.getsignal(signal.SIGTERM), ClusterEngine(jobs=2)
    with engine.session():  # Ray is started once for both batches
        for batch in (runs[:3], runs[3:]):
            store.make_missing(batch, engine, lambda run, share: told.append((run.key, share)), followers=[Heard])
            assert ray.is_initialized()
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is before
    assert sorted(told) == sorted((run.key, 1.0) for run in runs)
    assert_as_made_here(runs, store, tmp_path / "here")
    for run in runs:
        (heard,) = (one for one in Heard.all if one.run.key == run.key)
        rows = store.curve(run).drop("strategy", "seed").to_dicts()
        assert [{name: row[name] for name in rows[0]} for row in heard.rows] == rows
        seconds = [row["seconds"] for row in heard.rows if row["seconds"] is not None]  # in its live file, over there
        assert seconds == sorted(seconds)
        assert heard.rows[-1]["bits_total"] == pytest.approx(store.table(run, "metrics")["bits"].sum(), rel=1e-12)
        assert heard.ended == "done"
        assert heard.about.parameters == run.experiment.model.parameters(run.data)


def test_a_cluster_without_nodes_is_not_waited_for_forever(nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "IDLE_SECONDS", 1.0)
    nodes.of(0)
    with pytest.raises(efhc.EfhcError, match=r"^engine: no node is left in the cluster; 4 runs are still to be made$"):
        RunStore(tmp_path).make_missing(runs_of(), ClusterEngine(nodes.address), silent)


def test_a_node_needs_no_files(nodes, tmp_path, monkeypatch):
    nodes.of(1)
    monkeypatch.chdir(tmp_path)
    mine = Path("/proc/self/cwd")  # a folder that the nodes' processes see something else in
    data = efhc.Digits().load()
    np.savez("data.npz", **{name: getattr(data, name) for name in ("x_train", "y_train", "x_test", "y_test")})
    Path("graph.txt").write_text("".join(f"{i} {(i + 1) % 6}\n" for i in range(6)))
    Path("loss.py").write_text("import torch\nloss = torch.nn.functional.cross_entropy\n")
    runs = runs_of(
        data=efhc.NpzFile(path=mine / "data.npz"),
        network=efhc.EdgeListFile(path=mine / "graph.txt"),
        model=efhc.MLP(hidden=(8,), loss=f"{mine}/loss.py:loss"),
        strategies={"EF-HC": efhc.EventTriggered()},
    )
    store = RunStore(tmp_path / "ray")
    store.make_missing(runs, ClusterEngine("auto"), silent)
    assert set(store.meta(runs[0])["input_sha256"]) == {"data.path", "network.path", "model.loss"}
    assert_as_made_here(runs, store, tmp_path / "here")


def test_a_node_with_another_version_of_efhc_makes_no_run():
    run, *_ = runs_of()
    error = make_there("0.0.1", run.experiment, run.strategy, run.key, False, run.data, run.inputs.files)
    assert str(error) == f"engine: a node has efhc {efhc.__version__}, and not 0.0.1; install the same everywhere"


def test_parts_of_ones_own_are_made_on_two_nodes(nodes, tmp_path):
    for node in nodes.of(2):
        assert node
    experiment = efhc.load_experiment(EXAMPLES / "own-parts.toml", ["iterations=20", "seeds=[0, 1]"])
    runs = Runs().of(experiment)
    store = RunStore(tmp_path / "ray", with_models=True)
    assert store.make_missing(runs, ClusterEngine(nodes.address), silent) == {}
    named = {run.strategy: set(store.meta(run)["input_sha256"]) for run in runs}
    assert named["ZT"] == {"network.kind", "partition.kind"}
    assert named["staggered"] == {"network.kind", "partition.kind", "strategies.own.kind"}
    result = efhc.simulate(experiment)
    for run in runs:
        expected = result.metrics.filter(strategy=run.strategy, seed=run.seed)
        assert store.table(run, "metrics").equals(expected)


def test_an_experiment_that_was_begun_here_and_made_there_is_that_of_this_machine(own_ray, tmp_path):
    fields = {"iterations": 20, "evaluate_every": 10, "devices": 6, "seeds": (0, 1), "keep_models_every": 10}

    def interrupt(strategy: str, seed: int, done: int) -> None:
        if done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**fields, out=tmp_path / "ray", jobs=1, progress=interrupt)
    assert list((tmp_path / "ray").rglob("checkpoint.safetensors"))
    efhc.simulate(**fields, out=tmp_path / "here")
    efhc.simulate(**fields, out=tmp_path / "ray", engine=ClusterEngine(), resume=True)
    assert own_ray.is_initialized()
    for run in Runs().of(efhc.Experiment(**fields)):
        for name in [*(f"{table}.parquet" for table in LOCKSTEP.names), "models.safetensors"]:
            ray, here = (tmp_path / where / "runs" / run.key / name for where in ("ray", "here"))
            assert ray.read_bytes() == here.read_bytes()
    here, there = (efhc.Result.load(tmp_path / name).snapshots("ZT", 1) for name in ("here", "ray"))
    assert list(here) == list(there) == [0, 10, 20]
    assert all(np.array_equal(here[k], there[k]) for k in here)


# What is lost


def test_a_run_that_ends_its_worker_every_time_is_an_error(nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "RETRIES", 0)
    (node,) = nodes.of(1)
    run, *_ = runs_of(iterations=10_000_000, evaluate_every=1000)
    done = False

    def kill() -> None:
        while not done:
            for pid in workers_of(node):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    killing = Thread(target=kill)
    killing.start()
    try:
        with pytest.raises(efhc.EfhcError, match=r"^engine: EF-HC, seed 0 lost its worker 1 times, .*\)$"):
            RunStore(tmp_path).make_missing([run], ClusterEngine(nodes.address, jobs=1), silent)
    finally:
        done = True
        killing.join()


def test_runs_of_a_killed_node_are_made_elsewhere(nodes, tmp_path, capfd):
    staying, doomed = nodes.of(2)
    runs = runs_of(seeds=(0, 1, 2), iterations=3000, evaluate_every=1000)
    store, kept, in_flight = RunStore(tmp_path / "ray"), [], []

    def kill_one(run: Run, share: float) -> None:
        kept.append(store.meta(run)["ray_node"])
        if not in_flight and len(kept) < len(runs) and (working := workers_of(doomed)):
            in_flight.extend(working)
            nodes.cluster.remove_node(doomed, allow_graceful=False)

    with warmed_up(nodes):  # both nodes have a process that is ready, however busy the machine is
        store.make_missing(runs, ClusterEngine(), kill_one)
    assert "Traceback" not in "".join(capfd.readouterr())
    assert in_flight
    wait_for(lambda: not any(map(is_alive, in_flight)))
    assert len(kept) == len(runs)
    assert kept[-1] == staying.node_id
    assert_as_made_here(runs, store, tmp_path / "here")


@contextlib.contextmanager
def warmed_up(nodes: Nodes) -> Iterator[None]:
    """Connected, and with a worker on every node that has imported efhc and compiled its loops."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    def compile_loops() -> None:
        efhc.simulate(iterations=2, seeds=[0], devices=6)

    ray.init(nodes.address, **engine.QUIET)
    try:
        task = ray.remote(num_cpus=1)(compile_loops)
        on = [On(node.node_id, soft=False) for node in nodes.cluster.worker_nodes]
        ray.get([task.options(scheduling_strategy=where).remote() for where in on], timeout=120)
        yield
    finally:
        ray.shutdown()


PROGRAM = """
import os, signal, sys
import efhc
import ray
from pathlib import Path
from efhc.experiments.runs.engines.cluster import ClusterEngine
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.store import RunStore

def children(pid):
    for stat in Path("/proc").glob("[0-9]*/stat"):
        words = stat.read_text().rpartition(")")[2].split()
        if int(words[1]) == pid:
            yield int(stat.parent.name)

def kill_control(run, share):
    for pid in children(os.getpid()):
        if "gcs_server" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)

def tell(run, share):
    print(run.key, ray.get_runtime_context().gcs_address, flush=True)

if __name__ == "__main__":
    runs = Runs().of(efhc.Experiment(iterations=2000, evaluate_every=1000, devices=6, seeds=tuple(range(100))))
    out, jobs, progress = sys.argv[1:]
    try:
        RunStore(Path(out)).make_missing(runs, ClusterEngine(jobs=int(jobs)), globals()[progress])
    except KeyboardInterrupt:
        sys.exit(130)
    except efhc.EfhcError as error:
        print(error, flush=True)
        os._exit(7 if error.cannot_clean_up else 8)  # as the command line does
"""
"""Makes runs with Ray in a process of its own. Arguments: the folder, the number of jobs, and what progress does."""


def program_in(folder: Path, *arguments: str) -> list[str]:
    (folder / "program.py").write_text(PROGRAM)
    return [sys.executable, str(folder / "program.py"), str(folder / "out"), *arguments]


def test_a_cluster_that_dies_is_one_line(tmp_path):
    command = program_in(tmp_path, "1", "kill_control")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 7, done.stderr
    assert "has gone" in done.stdout
    assert list((tmp_path / "out").glob("*/metrics.parquet"))


# Errors


def test_an_error_in_a_run_is_the_same_as_here(own_ray, tmp_path):
    for number, (wrong, kind) in enumerate(
        [
            ({"model": efhc.Softmax(l2=1.0), "step_size": efhc.Constant(value=1e10)}, Diverged),
            ({"partition": efhc.LabelsPerDevice(labels_per_device=11)}, efhc.InputError),
        ]
    ):
        run, *_ = runs_of(**wrong)
        here, there = (
            RunStore(tmp_path / f"{number} {type(maker).__name__}").make_missing([run], maker, silent)[run.key]
            for maker in (LocalEngine(jobs=1), ClusterEngine())
        )
        assert type(here) is type(there) is kind
        assert str(here) == str(there)
        assert {name: str(fact) for name, fact in vars(there).items()} == {
            n: str(fact) for n, fact in vars(here).items()
        }


def test_a_process_that_uses_ray_already_names_no_address(own_ray, no_runs):
    assert "ray.init" in no_runs(ClusterEngine("auto"))


def test_without_ray_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(
        efhc.EfhcError, match=r"^--engine ray needs Ray: install the extra \[cluster\] \(docs/install.md\)$"
    ):
        RunStore(tmp_path).make_missing(runs_of(), ClusterEngine(), silent)


@pytest.mark.parametrize(
    "address", ["", "somewhere", ":6379", "host:", "host:port", "host:0", "host:65536", "ray://host"]
)
def test_an_address_is_auto_or_host_and_port(no_runs, address):
    assert no_runs(ClusterEngine(address)) == f"--address: cannot use {address}. Use {engine.ALLOWED}."


@pytest.mark.parametrize("address", [None, "auto"])
def test_jobs_are_at_least_one(no_runs, address):
    assert no_runs(ClusterEngine(address, jobs=0)).startswith("jobs: cannot use 0. Use at least 1")


def test_nothing_answers_at_an_address(no_runs):
    with socket.socket() as closed:  # bound, so that nobody else takes the port, but nobody listens
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        said = no_runs(ClusterEngine(address))
    assert said.startswith(f"--address: cannot use {address}, where nothing answers (")


def test_something_else_answers_at_an_address(no_runs, monkeypatch):
    monkeypatch.setattr(engine, "JOIN_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        said = no_runs(ClusterEngine(address))
    assert said.startswith(f"--address: cannot use {address}, which does not answer as a cluster does. Use")


def test_a_cluster_that_ray_cannot_join_for_its_own_reasons(nodes, no_runs, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere")
    said = no_runs(ClusterEngine(nodes.address))
    assert said.startswith(f"--address: cannot use {nodes.address}, which cannot be joined (")
    assert "/nowhere" in said


def test_where_ray_cannot_be_started(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("x" * 100)))  # too long for a socket
    with pytest.raises(efhc.EfhcError, match=r"^engine: Ray cannot be used \(.*path.*\)$"):
        RunStore(tmp_path / "runs").make_missing(runs_of(), ClusterEngine(), silent)


def test_auto_without_a_cluster(no_runs, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path_factory.mktemp("empty")))
    assert no_runs(ClusterEngine("auto")).startswith("--address: cannot use auto on a machine that is in no cluster.")


# Ctrl-C


def test_ctrl_c_ends_ray_and_keeps_what_is_done(tmp_path, no_runs):
    out = tmp_path / "out"
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with subprocess.Popen(
        program_in(tmp_path, "2", "tell"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as batch:
        try:
            told = [batch.stdout.readline().split() for _ in range(3)]
            # Nobody else gets in meanwhile.
            address = told[0][1]
            said = no_runs(ClusterEngine(address))
            assert said.startswith(f"--address: cannot use {address}, which wants its token: set RAY_AUTH_MODE=token")

            started = wait_for(lambda: (pids := descendants(batch.pid)) and any(map(is_working, pids)) and pids)
            os.killpg(batch.pid, signal.SIGINT)  # as a terminal does: to Ray's processes too
            rest, said = batch.communicate(timeout=60)
        except BaseException:
            for pid in [batch.pid, *descendants(batch.pid)]:
                os.kill(pid, signal.SIGKILL)
            raise
    told = [key for key, address in [*told, *map(str.split, rest.splitlines())]]
    assert batch.returncode == 130
    assert said == ""
    wait_for(lambda: not any(map(is_alive, started)))
    assert {path.parent.name for path in out.glob("*/meta.json")} == set(told)
    assert len(told) < 400
    runs = Runs().of(efhc.Experiment(iterations=2000, evaluate_every=1000, devices=6, seeds=tuple(range(100))))
    finished = [run for run in runs if run.key in told[:3]]
    assert_as_made_here(finished, RunStore(out), tmp_path / "here")
