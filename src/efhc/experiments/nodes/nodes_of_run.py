"""The nodes of one run on this machine: their files, and their processes until the run is made.

certs/                    an authority of this launch alone, and a certificate per device
STRATEGY.seedSEED/
  experiment.toml         the run's strategy and seed, the same for all devices
  device-3/node.toml      what `efhc node` reads
  device-3/state/         its state, and its record of the run
  device-3/log.jsonl      its log
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli_w

from efhc.base.errors import InputError
from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.compute import draw_compute_times
from efhc.drivers.settings import EventDriven
from efhc.experiments.config.files import to_tables
from efhc.experiments.nodes.namespaces import Namespaces
from efhc.experiments.nodes.node_files import build_node, linked_devices, tls_table
from efhc.experiments.nodes.processes import Command, NodeFailed, NodeProcesses, free_ports
from efhc.experiments.nodes.status_query import Answer
from efhc.experiments.runs.lockstep_run import snapshot_iterations
from efhc.experiments.runs.moments import Moments
from efhc.experiments.runs.resources import usable_cores
from efhc.experiments.runs.run import Run, file_name
from efhc.runtime.node_settings import NodeSettings
from efhc.runtime.recording import last_second
from efhc.runtime.security import authority_files, device_files
from efhc.scenarios.scenario import Scenario

CERTS = "certs"
MODELS_BYTES = 2_000_000_000
"""Bytes of models up to which nodes in lockstep record each iteration, so that each has a consensus error."""
FOR_EVER = 100_000_000
"""Iterations of a node that is stopped by the clock."""
START_SECONDS = 3.0
"""Seconds that a core needs to start a process, and that all need to find each other."""
LOOK_SECONDS = 0.5
STOP_SECONDS: float = NodeSettings.model_fields["stop_seconds"].default
STARTS = 3
"""Number of starts of a run if another program takes one of its ports meanwhile."""
PORT = 7700
"""Where nodes in namespaces listen: each has an address of its own."""


class NodesOfRun:
    """The nodes of one run."""

    def __init__(self, folder: Path, run: Run, scenario: Scenario, warn: Callable[[str], None]) -> None:
        """`folder` is that of the launch, an absolute path; it holds the folders of several runs."""
        self._launch, self._run, self._scenario, self._warn = folder, run, scenario, warn
        driver = run.experiment.driver
        self._driver = driver if isinstance(driver, EventDriven) else None
        """The settings of free-running nodes; None in lockstep."""
        self._folder = folder / file_name(*run.pair)
        self._folders = [self._folder / f"device-{device}" for device in range(run.experiment.devices)]
        self.states = [folder / "state" for folder in self._folders]
        self._started = 0.0
        """The wall-clock time of second 0."""
        self._begin = 0.0
        """The second at which free-running nodes begin, or go on in a run that is resumed."""

    def make(self, netns: bool, progress: Callable[[float], None], view: Callable[[list[Answer]], None]) -> float:
        """Run the nodes to their end. Returns the second of the end. Raises `NodeFailed`."""
        for attempt in range(1, STARTS + 1):
            try:
                with self._network(netns) as (addresses, command):
                    self._write(addresses)
                    with NodeProcesses(self._folders, command) as nodes:
                        return self._watch(nodes, progress, view)
            except NodeFailed as error:
                if "in use" not in str(error) or attempt == STARTS:
                    raise
        raise AssertionError("unreachable")

    def remove(self) -> None:
        """Remove the files of this run, and the certificates with those of the last one."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if all(path.name == CERTS for path in self._launch.iterdir()):
            shutil.rmtree(self._launch, ignore_errors=True)

    @contextmanager
    def _network(self, netns: bool) -> Iterator[tuple[list[str], Command]]:
        """Yield where the devices listen, and how a command runs on one of them."""
        devices = range(len(self._folders))
        if not netns:
            yield [f"127.0.0.1:{port}" for port in free_ports(len(devices))], lambda device, *words: words
            return
        bits = 8 * np.dtype(self._run.experiment.precision).itemsize
        rates = {device: float(self._scenario.bandwidths.values[device]) * bits for device in devices}
        with Namespaces(devices, rates) as namespaces:
            yield [f"{namespaces.address(device)}:{PORT}" for device in devices], namespaces.command

    # Files

    def _write(self, addresses: Sequence[str]) -> None:
        """Write all files; `addresses` are where the devices listen. The state of an earlier start stays."""
        from efhc.runtime.certificates import issue, make_authority

        experiment, certs = self._run.experiment, self._launch / CERTS
        if not authority_files(certs).certificate.exists():
            make_authority(certs)
        if missing := [i for i in range(experiment.devices) if not device_files(certs, i).certificate.exists()]:
            issue(certs, missing)
        if self._seconds is not None:
            experiment = experiment.model_copy(update={"iterations": FOR_EVER})
        common, paces, linked = self._settings()
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "experiment.toml").write_text(tomli_w.dumps(to_tables(experiment)))
        for device, folder in enumerate(self._folders):
            tables = {
                "experiment": "../experiment.toml",
                "state": "state",
                **common,
                "device": device,
                "listen": addresses[device],
                "neighbours": [{"device": other, "address": addresses[other]} for other in sorted(linked[device])],
                "pace": paces[device],
                "tls": tls_table(certs, device),
            }
            build_node(tables)
            folder.mkdir(exist_ok=True)
            (folder / "node.toml").write_text(tomli_w.dumps(tables))

    def _settings(self) -> tuple[dict[str, Any], list[float], list[set[int]]]:
        """Return the settings of all devices, the pace and the neighbours of each, and note when the run begins.

        The pace of a free-running node is the time of its first step in the simulation, and its neighbours are those
        in G(0). A node in lockstep has the neighbours of all iterations.
        """
        driver, network, devices, now = self._driver, self._scenario.network, len(self._folders), time.time()
        stopped = max(map(last_second, self.states))  # time in which no node ran does not count
        if driver is None:  # they wait for one another, whenever each of them is up
            self._started = now - stopped
            record = {"start": self._started, "models_after": self._models_after()}
            linked = linked_devices(network, devices, self._run.experiment.iterations)
            return {"mode": "lockstep", "record": record}, [0.0] * devices, linked
        if not network.graph(1).has_links_of(network.graph(0)):
            self._warn(f"{self._run.name}: the network changes, and free-running nodes have the links of G(0)")
        cores = usable_cores()
        busy = min(max(1.0, os.getloadavg()[0] / cores), 2.0)  # others use the cores, too
        starting = busy * START_SECONDS * (1 + devices / cores)
        self._begin, self._started = stopped, now + starting - stopped  # together, when each has had time to start
        common: dict[str, Any] = {
            "mode": "free-running",
            "record": {"start": self._started, "begin": self._begin, "models_seconds": driver.sample_seconds},
            "limits": {"patience": driver.patience_seconds, "give_up": driver.give_up_seconds},
        }
        if driver.bandwidth == "measured":
            common["bandwidth"] = "measured"
        clock = draw_compute_times(driver.compute, devices, Randomness(self._run.seed))
        paces = [float(clock.seconds(device, 0)) for device in range(devices)]
        return common, paces, linked_devices(network, devices, 1)

    def _models_after(self) -> list[int] | Literal["every"]:
        """Return the numbers of iterations after which nodes in lockstep record their models."""
        experiment = self._run.experiment
        numbers = experiment.devices * self._scenario.learner.backend.parameters * experiment.iterations
        if numbers * np.dtype(experiment.precision).itemsize <= MODELS_BYTES:
            return "every"
        if experiment.evaluate_at == "budgets":
            given = "'budgets' for nodes, whose models of all iterations do not fit on the disk"
            raise InputError("evaluate_at", given, "'drawn' or 'multiples'")
        moments = Moments(experiment, self._scenario).planned
        return sorted({*moments, *snapshot_iterations(self._run)})

    # Processes

    def _watch(
        self, nodes: NodeProcesses, progress: Callable[[float], None], view: Callable[[list[Answer]], None]
    ) -> float:
        """Wait until the nodes have done their work, and stop them. Returns the second of the end."""
        may_be_late = self._driver is not None
        try:
            while nodes.running:
                time.sleep(LOOK_SECONDS)
                nodes.check()
                answers = nodes.statuses()
                view(answers)
                statuses = [answer.status for answer in answers if answer.status is not None]
                if may_be_late and len(statuses) == len(answers):
                    may_be_late = False
                    if self._now > self._begin + LOOK_SECONDS:
                        self._warn(f"{self._run.name}: the last node was up at second {self._now:.1f} of the run")
                progress(min(self._share(statuses), 0.999))
                if self._is_over(statuses):
                    break
            end = self._now
            nodes.stop(STOP_SECONDS)
        except BaseException:  # a node failed, or the user interrupted: the others keep their state
            with suppress(NodeFailed):
                nodes.stop(STOP_SECONDS)
            raise
        return self._seconds or end

    @property
    def _now(self) -> float:
        return time.time() - self._started

    @property
    def _seconds(self) -> float | None:
        """How long free-running nodes train; None if they stop by themselves."""
        return self._driver.seconds if self._driver else None

    def _share(self, statuses: Sequence[Mapping[str, Any]]) -> float:
        """Return the share of the run that is done."""
        if self._seconds is not None:
            return max(0.0, self._now) / self._seconds
        done = sum(int(status["iteration"]) for status in statuses)
        return done / (len(self._folders) * self._run.experiment.iterations)

    def _is_over(self, statuses: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether to stop the nodes. Nodes in lockstep end by themselves."""
        if self._seconds is not None:
            return self._now >= self._seconds
        finished = [status for status in statuses if status["state"] == "finished" and not status["in_doubt"]]
        return self._driver is not None and len(finished) == len(self._folders)
