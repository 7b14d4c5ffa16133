"""The files of all nodes of one run on this machine: certificates, the experiment, and a folder per device.

certs/                    an authority of this launch alone, and a certificate per device
STRATEGY.seedSEED/
  experiment.toml         the run's strategy and seed, the same for all devices
  device-3/node.toml      what `efhc node` reads
  device-3/state/         its state, and its record of the run
  device-3/log.jsonl      its log
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.compute import draw_compute_times
from efhc.drivers.event_driven.settings import EventDriven
from efhc.experiments.config.files import to_tables
from efhc.experiments.nodes.node_files import linked_devices
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


class NodeFolders:
    """The files of the nodes of one run."""

    def __init__(self, folder: Path, run: Run, scenario: Scenario, warn: Callable[[str], None]) -> None:
        """`folder` is that of the launch, an absolute path; it holds the folders of several runs."""
        self._launch, self._run, self._scenario, self.warn = folder, run, scenario, warn
        self._of_run = folder / file_name(*run.pair)
        self.folders = [self._of_run / f"device-{device}" for device in range(run.experiment.devices)]
        self.states = [folder / "state" for folder in self.folders]
        self.started = 0.0
        """The wall-clock time of second 0."""
        self.begin = 0.0
        """The second at which free-running nodes begin, or go on in a run that is resumed."""

    @property
    def driver(self) -> EventDriven | None:
        """The settings of free-running nodes; None in lockstep."""
        driver = self._run.experiment.driver
        return driver if isinstance(driver, EventDriven) else None

    @property
    def sample_seconds(self) -> float:
        """How often free-running nodes record their models."""
        assert self.driver is not None
        assert self.driver.sample_seconds is not None
        return self.driver.sample_seconds

    def write(self, addresses: Sequence[str]) -> None:
        """Write all files; `addresses` are where the devices listen. The state of an earlier start stays."""
        from efhc.runtime.certificates import issue, make_authority

        experiment, certs = self._run.experiment, self._launch / CERTS
        if not authority_files(certs).certificate.exists():
            make_authority(certs)
        if missing := [i for i in range(experiment.devices) if not device_files(certs, i).certificate.exists()]:
            issue(certs, missing)
        if self.driver is not None and self.driver.seconds is not None:
            experiment = experiment.model_copy(update={"iterations": FOR_EVER})
        common, linked, paces = self._settings_of_all(), self._linked(), self._paces()
        self._of_run.mkdir(parents=True, exist_ok=True)
        (self._of_run / "experiment.toml").write_text(tomli_w.dumps(to_tables(experiment)))
        for device, folder in enumerate(self.folders):
            files = device_files(certs, device)
            tables = {
                **common,
                "device": device,
                "listen": addresses[device],
                "neighbours": [{"device": other, "address": addresses[other]} for other in sorted(linked[device])],
                "pace": paces[device],
                "tls": {
                    "authority": str(authority_files(certs).certificate),
                    "certificate": str(files.certificate),
                    "key": str(files.key),
                },
            }
            NodeSettings.model_validate(tables)
            folder.mkdir(exist_ok=True)
            (folder / "node.toml").write_text(tomli_w.dumps(tables))

    def remove(self) -> None:
        """Remove the files of this run, and the certificates with those of the last one."""
        shutil.rmtree(self._of_run, ignore_errors=True)
        if all(path.name == CERTS for path in self._launch.iterdir()):
            shutil.rmtree(self._launch, ignore_errors=True)

    def _settings_of_all(self) -> dict[str, Any]:
        """Return the settings that are the same for all devices, and note when the run begins."""
        driver, now = self.driver, time.time()
        mode = "lockstep" if driver is None else "free-running"
        found: dict[str, Any] = {"experiment": "../experiment.toml", "state": "state", "mode": mode}
        stopped = max(map(last_second, self.states))  # time in which no node ran does not count
        if driver is None:  # they wait for one another, whenever each of them is up
            self.started = now - stopped
            return found | {"record": {"start": self.started, "models_every": self._models_every()}}
        cores = usable_cores()
        busy = min(max(1.0, os.getloadavg()[0] / cores), 2.0)  # others use the cores, too
        starting = busy * START_SECONDS * (1 + len(self.folders) / cores)
        self.begin, self.started = stopped, now + starting - stopped  # together, when each has had time to start
        found["limits"] = {"patience": driver.patience_seconds, "give_up": driver.give_up_seconds}
        if driver.bandwidth == "measured":
            found["bandwidth"] = "measured"
        times = {"start": self.started, "begin": self.begin, "models_seconds": self.sample_seconds}
        return found | {"record": times}

    def _models_every(self) -> int:
        """Return how often nodes in lockstep record their models."""
        experiment = self._run.experiment
        numbers = experiment.devices * self._scenario.learner.backend.parameters * experiment.iterations
        if numbers * np.dtype(experiment.precision).itemsize <= MODELS_BYTES:
            return 1
        return math.gcd(experiment.evaluate_every, experiment.keep_models_every or 0)

    def _paces(self) -> list[float]:
        """Return the least seconds per step of each device: in an event-driven experiment, those of its first step."""
        devices = range(len(self.folders))
        if self.driver is None:
            return [0.0 for _ in devices]
        clock = draw_compute_times(self.driver.compute, len(devices), Randomness(self._run.seed))
        return [float(clock.seconds(device, 0)) for device in devices]

    def _linked(self) -> list[set[int]]:
        """Return the neighbours of each device: in lockstep those of all iterations, else those of G(0)."""
        network = self._scenario.network
        if self.driver is not None and not network.graph(1).has_links_of(network.graph(0)):
            self.warn(f"{self._run.name}: the network changes, and free-running nodes have the links of G(0)")
        return linked_devices(network, len(self.folders), self._run.experiment.iterations if self.driver is None else 1)
