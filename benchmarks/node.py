"""What a node costs: CPU per megabyte, training beside neighbours, memory in models, and the share of a link it uses.

Each figure is a ratio of two things measured in this run, by turns. `python -m benchmarks.node NODE.toml` is the
process to which memory is compared: it loads what a node loads, and trains.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import tomli_w

from benchmarks.measure import Ratio, Row, by_turns
from benchmarks.swapping import OURS, PLAIN, swap
from efhc.base.errors import EfhcError
from efhc.experiments.nodes.namespaces import Namespaces
from efhc.experiments.nodes.processes import ONE_THREAD, free_ports
from efhc.experiments.nodes.status_query import query_status
from efhc.runtime.certificates import issue, make_authority
from efhc.runtime.pages import SOCKET_NAME
from efhc.runtime.security import authority_files, device_files

LINKS = ((45.0, 5000), (1.0, 128))
"""Megabytes that are sent both ways at once over a link of so many kbit/s."""
CPU_MEGABYTES, CPU_MODELS = 10.0, 10
"""What is swapped in a round that measures CPU time: the size of a model, and how many of them, each way."""
NEIGHBOURS = 9
STEP_SECONDS = 8.0
"""How long steps are counted in a round."""
FEATURES = 1_000_000
"""Of the samples whose model measures memory; with ten classes a model has 40 MB."""
IN_FLIGHT = 3
"""Exchanges in flight at once when memory is measured."""
MEMORY_SECONDS = 15.0
"""How long the peak of memory is looked for."""
SEND = 20e6
"""Bytes per second of a node whose memory is measured: exchanges that take seconds are always in flight."""
FREED_IS_FREE = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""glibc then returns every model to the system when it is freed, instead of keeping those below 32 MiB for later."""
LIMIT_SECONDS = 180.0
"""A process that is not ready by then hangs."""
READY = "ready"


def measure(rounds: int) -> Iterator[Row]:
    """Measure everything. Slow links need root; without it, their rows say so."""
    with tempfile.TemporaryDirectory(prefix="efhc-bench-") as name:
        folder = Path(name)
        certificates = folder / "certificates"
        make_authority(certificates)
        issue(certificates, range(NEIGHBOURS + 1))
        yield cpu(certificates, rounds)
        yield steps(folder / "steps", certificates, rounds)
        yield from memory(folder / "memory", certificates, rounds)
        for megabytes, kilobits in LINKS:
            yield goodput(megabytes, kilobits, certificates)


def _row(about: str, found: str, spread: str, goal: str, besides: str) -> Row:
    return {"what": about, "found": found, "least-most": spread, "goal": goal, "besides": besides}


def goodput(megabytes: float, kilobits: int, certificates: Path) -> Row:
    """Which share of a link's rate models get, when both ends send one at once."""
    about = f"goodput, {megabytes:g} MB both ways at once, {kilobits:,} kbit/s"
    if os.geteuid() != 0:
        return _row(about, "not measured", "", "at least 85%", "needs root")
    least = 8e3 * megabytes / kilobits
    with Namespaces((0, 1), dict.fromkeys((0, 1), 1e3 * kilobits)) as network:
        inside = [network.command(device) for device in (0, 1)]
        seconds, _ = swap(OURS, megabytes, 1, certificates, network.address(0), inside, timeout=60 + 3 * least)
    besides = f"{seconds:.1f} s, {least:.1f} s without any overhead"
    return _row(about, f"{least / seconds:.0%}", "", "at least 85%", besides)


def cpu(certificates: Path, rounds: int) -> Row:
    """CPU time per megabyte of models, over our transport and over plain asyncio streams with TLS."""
    total = 2 * CPU_MODELS * CPU_MEGABYTES
    sides = {
        side: lambda side=side: swap(side, CPU_MEGABYTES, CPU_MODELS, certificates).cpu_seconds / total
        for side in (PLAIN, OURS)
    }
    found = by_turns(sides, rounds, warm_up=False)
    ratio = Ratio.of(found[OURS], found[PLAIN]).row()
    besides = ", ".join(f"{side} {1e3 * statistics.median(each):.1f} ms" for side, each in found.items())
    about = "CPU per exchanged MB, against plain asyncio and TLS"
    return _row(about, ratio["ratio"], ratio["least-most"], "at most 2x", besides)


def steps(folder: Path, certificates: Path, rounds: int) -> Row:
    """Steps per CPU second of a node with neighbours that are up and send nothing, against those of a lone one."""
    experiment = _experiment(folder, NEIGHBOURS, data={"kind": "fashion-mnist"})
    centre, *others = star(experiment, certificates, NEIGHBOURS, {"strategy": "never"}, {"pace": 3600.0})
    first, *more = sorted(os.sched_getaffinity(0))

    def rate(settings: Mapping[str, Any], links: int) -> float:
        with NodeProcess(Path(tempfile.mkdtemp(dir=folder)), settings, [first]) as node:
            node.wait_until(partial(_is_quiet, links), "linked and quiet")
            before, started = node.status()["steps"], node.cpu_seconds()
            time.sleep(STEP_SECONDS)
            return float((node.status()["steps"] - before) / (node.cpu_seconds() - started))

    with ExitStack() as stack:
        for settings in others:
            settings |= {"strategy": "never"}
            node = stack.enter_context(NodeProcess(Path(tempfile.mkdtemp(dir=folder)), settings, more or [first]))
            node.wait_until(lambda status: status["state"] == "training", "training")
        sides = {"alone": partial(rate, centre | {"neighbours": []}, 0), "linked": partial(rate, centre, NEIGHBOURS)}
        found = by_turns(sides, rounds, warm_up=False)
    ratio = Ratio.of(found["linked"], found["alone"])
    besides = " and ".join(f"{statistics.median(each):,.0f}" for each in found.values())
    about = f"steps per CPU second, {NEIGHBOURS} neighbours up and nothing to send, against a lone node"
    spread = f"{ratio.least:.0%}-{ratio.most:.0%}"
    return _row(about, f"{ratio.median:.1%}", spread, "at least 95%", f"{besides} steps per CPU second")


def _is_quiet(links: int, status: dict[str, Any]) -> bool:
    """Whether a node trains, and has made the exchanges that new links bring."""
    done = sum(neighbour["exchanges"]["committed"] for neighbour in status["neighbours"])
    return bool(status["steps"] > 0 and status["links_up"] == links and done >= links)


def memory(folder: Path, certificates: Path, rounds: int) -> Iterator[Row]:
    """The peak memory of a node above that of a process that only trains, in models; the largest round counts."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (20, FEATURES), dtype=np.uint8), np.arange(20) % 10
    np.savez(folder / "samples.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
    data = {"kind": "npz", "path": str(folder / "samples.npz")}
    experiment = _experiment(folder, IN_FLIGHT, data=data, batch_size=1, partition={"kind": "iid"})
    shared = {"strategy": "ZT", "pace": 0.2, "limits": {"send": SEND}, "checkpoint_seconds": 3600.0}
    centre, *others = star(experiment, certificates, IN_FLIGHT, shared, shared)
    # A device that never fires holds its last broadcast, too; for one that always fires, that is the model.
    lone = NodeProcess(folder / "lone", centre | {"neighbours": [], "strategy": "never"})
    with Process(["-m", "benchmarks.node", str(lone.file)], folder / "training.txt") as training:
        wait_until(lambda: READY in training.printed(), "training alone has not begun")
        base = training.peak_memory(MEMORY_SECONDS)
    size = 40 * (FEATURES + 1)  # ten classes, float32

    def in_models(about: str, node: NodeProcess, most: int) -> Row:
        peaks = sorted(node.peak_memory(MEMORY_SECONDS) for _ in range(rounds))
        least, models = ((peak - base) / size for peak in (peaks[0], peaks[-1]))
        sizes = (("peak", peaks[-1]), ("training alone", base), ("a model", size))
        besides = ", ".join(f"{what} {bytes_ / 2**20:,.0f} MiB" for what, bytes_ in sizes)
        about = f"memory above training, {about}"
        return _row(about, f"{models:.1f} models", f"{least:.1f}-{models:.1f}", f"at most {most}", besides)

    with lone:
        lone.wait_until(lambda status: status["steps"] > 3, "training")
        yield in_models("no exchange in flight", lone, 3)
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(NodeProcess(folder / f"device-{number}", settings))
            for number, settings in enumerate((centre, *others))
        ]
        nodes[0].wait_until(partial(_is_quiet, IN_FLIGHT), "linked")
        yield in_models(f"{IN_FLIGHT} exchanges in flight", nodes[0], 3 + 2 * IN_FLIGHT)


def _experiment(folder: Path, neighbours: int, **fields: Any) -> Path:
    folder.mkdir(exist_ok=True)
    table = {"devices": neighbours + 1, "iterations": 10**9, "seeds": [0], "model": {"kind": "svm"}, **fields}
    table |= {"network": {"kind": "complete"}, "strategies": {"ZT": {"kind": "zt"}, "never": {"kind": "never"}}}
    file = folder / "experiment.toml"
    file.write_text(tomli_w.dumps(table))
    return file


def star(
    experiment: Path, certificates: Path, neighbours: int, centre: Mapping[str, Any], others: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return node files: that of device 0, and those of its `neighbours` neighbours, which know nobody else.

    `centre` and `others` are further settings of device 0 and of its neighbours.
    """
    addresses = {device: f"127.0.0.1:{port}" for device, port in enumerate(free_ports(neighbours), 1)}

    def node(device: int, neighbours: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        files = device_files(certificates, device)
        authority = authority_files(certificates).certificate
        tls = {"authority": authority, "certificate": files.certificate, "key": files.key}
        table = {"experiment": str(experiment), "device": device, "neighbours": neighbours}
        return table | {"tls": {name: str(path) for name, path in tls.items()}}

    listed = [{"device": device, "address": address} for device, address in addresses.items()]
    around = [node(device, [{"device": 0}]) | {"listen": address, **others} for device, address in addresses.items()]
    return [node(0, listed) | dict(centre), *around]


class Process:
    """A process with one thread for arithmetic; leaving the context kills it."""

    def __init__(self, command: Sequence[str], output: Path, cores: Sequence[int] = ()) -> None:
        """`output` gets what the process prints. If `cores` are given, it keeps to them."""
        self._command, self._output, self._cores = command, output, cores

    def __enter__(self) -> Self:
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *self._command],
                env=os.environ | ONE_THREAD | FREED_IS_FREE,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        if self._cores:
            os.sched_setaffinity(self._process.pid, self._cores)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()  # a bench keeps nothing of it
        self._process.wait()

    def printed(self) -> str:
        """Return what the process has printed so far. Raises `EfhcError` if it has ended."""
        text = self._output.read_text(errors="replace")
        if self._process.poll() is not None:
            raise EfhcError(f"a process of the bench ended: {''.join(text.strip().splitlines()[-1:])}")
        return text

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used, all threads."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_memory(self, seconds: float) -> int:
        """Return the most bytes that the process holds in memory within the next `seconds`."""
        folder = Path(f"/proc/{self._process.pid}")
        (folder / "clear_refs").write_text("5")  # Linux: the peak counts from now on
        time.sleep(seconds)
        self.printed()  # it must still be there
        (kibibytes,) = re.findall(r"VmHWM:\s+(\d+) kB", (folder / "status").read_text())
        return 1024 * int(kibibytes)


class NodeProcess(Process):
    """A running `efhc node`; `folder` gets the node file and the state."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], cores: Sequence[int] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self._state = folder / "node.toml", folder / "state"
        self.file.write_text(tomli_w.dumps({**settings, "state": str(self._state)}))
        super().__init__(["-m", "efhc", "node", str(self.file)], folder / "output.txt", cores)

    def status(self) -> dict[str, Any]:
        """Return the node's status, empty while it does not answer yet."""
        self.printed()
        return query_status(self._state / SOCKET_NAME).status or {}

    def wait_until(self, is_there: Callable[[dict[str, Any]], bool], what: str) -> None:
        """Wait until `is_there` holds for the status. Raises `EfhcError` if it never does."""
        wait_until(lambda: bool(status := self.status()) and is_there(status), f"the node of the bench is not {what}")


def wait_until(holds: Callable[[], bool], otherwise: str) -> None:
    """Wait until something holds. Raises `EfhcError` if it does not within `LIMIT_SECONDS`."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise EfhcError(f"{otherwise} after {LIMIT_SECONDS:g} s")
        time.sleep(0.1)


def train_alone(file: Path) -> None:
    """Train as the device of a node file would, on and on; prints `READY` once its memory is that of training."""
    from efhc.experiments.config.files import load_experiment
    from efhc.experiments.nodes.assemble import choose, own_scenario
    from efhc.experiments.nodes.node_files import read_node
    from efhc.runtime.training import Trainer

    settings = read_node(file)
    chosen = choose(load_experiment(settings.experiment), settings)
    scenario = own_scenario(chosen.experiment, chosen.seed, settings.device, settings.data, apart=True)
    trainer = Trainer(scenario, settings.device, chosen.form)
    trainer.warm_up()
    model = trainer.initial_model()
    for k in range(chosen.experiment.iterations):
        gradient, _, trainer.local = trainer.gradient(k, model)
        model = trainer.mixed(model, gradient, trainer.scenario.step_size(k), [])
        del gradient  # it is the model now
        if k == 3:
            print(READY, flush=True)


if __name__ == "__main__":
    train_alone(Path(sys.argv[1]))
