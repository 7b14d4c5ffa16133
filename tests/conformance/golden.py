# ruff: noqa: T201 - a tool for the command line
"""Hashes of the results of small runs, to see whether a change of the code changes what it computes.

python tests/conformance/golden.py write FILE     make all runs, and write what they hash to
python tests/conformance/golden.py compare FILE   make the runs of FILE again, and say which differ, and in what

A hash is of one column of a table, or of the final models. A column that FILE does not have is not compared. Compiled
loops may round differently on another processor or with other versions, which FILE records. `write` leaves out
combinations that efhc refuses, and says why. `compare` exits with 1 if a strategy of the paper differs.

In golden.json, the hashes of the paper's strategies are those of 0.2.0 (39bc495), but for lockstep with loss, which has
the arithmetic of lockstep without loss since. All others are those of the change to one law.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import tempfile
import time
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numba
import numpy as np

import efhc

Table = dict[str, Any]
"""Settings as a config has them."""
Hashes = dict[str, str]
"""By TABLE.COLUMN, and of the final `models`."""

PAPER = ("ef-hc", "gt", "zt", "rg", "never", "periodic")
R = 3000.0
HALF_STEPS: Table = {"kind": "half-steps", "rate": 0.5}
STRATEGIES: dict[str, Table] = {
    "ef-hc": {"r": R},
    "gt": {"r": R},
    "gt, mean": {"r": R, "rho": "mean"},
    "zt": {},
    "rg": {"probability": 0.2},
    "never": {},
    "periodic": {"every": 4},
    "beer": {},
    "central": {},
    "choco": {},
    "choco, top-k": {"rate": 0.3, "codec": {"kind": "top-k", "share": 0.1}},
    "sparq": {"r": R, "every": 3},
    "composed": {"trigger": {"kind": "norm", "r": R, "every": 2}},
    "composed, tree": {"links": "tree", "trigger": {"kind": "coin", "probability": 0.4}, "local": "momentum"},
    "composed, sampled": {"links": "sampled", "trigger": "always", "codec": "sign", "mixing": HALF_STEPS},
    "entrywise": {"r": R},
    "entrywise, budget": {"r": R, "momentum": 0.9, "budget": {"share": 0.2}},
    "composed, adam": {"trigger": {"kind": "norm", "r": R}, "local": "adam", "mixing": HALF_STEPS},
    "d2": {},
    "d2, momentum": {"rate": 0.5, "momentum": 0.9},
    "dsgt": {},
    "matcha": {"budget": 0.5},
    "one-way": {"r": R},
    "one-way, bits": {"r": R, "bits": 4, "momentum": 0.5},
    "relay": {},
}
"""By kind, or by kind and variant, arguments with which the strategy does something within few iterations."""

COMMON: Table = {
    "devices": 7, "iterations": 25, "seeds": [3], "batch_size": 8, "evaluate_every": 5, "evaluate_at": "multiples",
    "test_samples": 100,
    "partition": {"kind": "labels", "labels_per_device": 2},
    "network": {"kind": "geometric", "radius": 0.5},
    "bandwidths": {"kind": "uniform", "nominal": 20000.0, "spread": 0.9},
}  # fmt: skip
RANDOM_LINKS: Table = {"kind": "random-links", "topology": {"kind": "geometric", "radius": 0.5}, "up_probability": 0.5}
CHANGING: Table = {"network": RANDOM_LINKS, "initial_models": "shared", "exchange_at_start": True}
INSTANT: Table = {"kind": "event-driven", "links": "instant", "compute": {"seconds": 0.2}, "network_seconds": 0.2}
LINKS: Table = {"latency": 0.01, "jitter": 0.01, "loss": 0.03, "when_lost": "drop"}
DELAYED: Table = {
    "kind": "event-driven", "network_seconds": 0.7, "sample_seconds": 1.0, "patience_seconds": 1.0,
    "give_up_seconds": 1.5, "links": {"kind": "shared", **LINKS},
    "compute": {"kind": "lognormal", "median": 0.2, "sigma": 0.3, "device_sigma": 0.3},
}  # fmt: skip
CHURN: Table = {"start": "copy", "crash_every": 2.0, "restart_after": 0.5, "leave_every": 4.0, "join_after": 1.0}
CASES: dict[str, Table] = {
    "lockstep": {},
    "lockstep, changing": CHANGING,
    "lockstep, lossy": {"driver": {"kind": "lockstep", "loss": 0.1}},
    "lockstep, float64": {"precision": "float64", "model": "softmax"},
    "instant": {"driver": INSTANT},
    "instant, changing": {"driver": INSTANT, **CHANGING},
    "shared": {"driver": DELAYED},
    "shared, float64": {"driver": DELAYED, "precision": "float64"},
    "per-link, changing": {"driver": {**DELAYED, "links": {"kind": "per-link", **LINKS}}, **CHANGING},
    "churn": {"driver": {**DELAYED, "churn": CHURN, "bandwidth": "measured"}},
}
DATA = ("digits", "fashion-mnist")
RUNS = {
    " | ".join(run): run for run in product(STRATEGIES, CASES, DATA) if run[2] == "digits" or "float64" not in run[1]
}


def kind_of(run: str) -> str:
    return run.partition(" | ")[0].partition(", ")[0]


def machine() -> dict[str, str]:
    """What the last bits of results may depend on."""
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    fields = {key.strip(): value.strip() for key, _, value in lines}
    flags = " ".join(sorted(fields.get("flags", fields.get("Features", "")).split()))
    processor = fields.get("model name", platform.machine())
    return {"processor": processor, "flags": digest(flags), "numpy": np.__version__, "numba": numba.__version__}


def digest(content: str | bytes) -> str:
    """The first 12 digits of the SHA-256: two results that differ share them by chance once in 2^48."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:12]


def few_samples(folder: Path) -> Table:
    """Write 700 training and 100 test samples of Fashion-MNIST to a file in `folder`; return the setting `data`."""
    data, path, train, test = efhc.FashionMNIST().load(), folder / "fashion-mnist.npz", slice(700), slice(100)
    x_train, y_train, x_test, y_test = data.x_train[train], data.y_train[train], data.x_test[test], data.y_test[test]
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return {"kind": "npz", "path": str(path), "standardize": True}


def hashes(run: str, data: Table) -> Hashes:
    """Make a run; `data` is the setting of its data set."""
    strategy, case, _ = RUNS[run]
    strategies = {"it": STRATEGIES[strategy] | {"kind": kind_of(run)}}
    fields = COMMON | CASES[case] | {"data": data, "strategies": strategies}
    with tempfile.TemporaryDirectory() as folder:
        result = efhc.simulate(out=Path(folder) / "run", jobs=1, warn=lambda text: None, **fields)
        tables = dict(result.tables)
        if "exchanges" in tables:  # the order of exchanges that end at one instant means nothing
            tables["exchanges"] = tables["exchanges"].sort("end", "device", "neighbour", "start", "event", "beta")
        found = {
            f"{name}.{column}": digest(repr(table[column].to_list()))
            for name, table in tables.items()
            if "strategy" in table.columns  # the others are the same for all strategies
            for column in table.drop("strategy", "seed").columns
        }
        (models,) = result.models.values()
        return {**found, "models": digest(f"{models.dtype} {models.shape}".encode() + models.tobytes())}


def differing(recorded: Hashes, found: Hashes) -> list[str]:
    """The names of what differs from what was recorded, or is no longer there."""
    return [name for name, value in recorded.items() if found.get(name) != value]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "compare"])
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    print(f"efhc is that of {Path(efhc.__file__).parent}")
    with tempfile.TemporaryDirectory() as folder:
        data: dict[str, Table] = {"digits": {"kind": "digits"}, "fashion-mnist": few_samples(Path(folder))}
        return {"write": write, "compare": compare}[given.what](given.file, data)


def write(file: Path, data: dict[str, Table]) -> int:
    runs: dict[str, Hashes] = {}
    refused: Counter[str] = Counter()
    for run, (*_, data_set) in RUNS.items():
        try:
            runs[run] = hashes(run, data[data_set])
        except efhc.InputError as error:
            refused[str(error)] += 1
    lines = ",\n".join(f"{json.dumps(run)}: {json.dumps(found)}" for run, found in runs.items())
    file.write_text(f'{{"machine": {json.dumps(machine())},\n"runs": {{\n{lines}\n}}}}\n')
    for reason, count in refused.items():
        print(f"{count} combinations were refused: {reason}")
    print(f"{len(runs)} runs in {time.process_time():.0f} s of processor time")
    return 0


def compare(file: Path, data: dict[str, Table]) -> int:
    recorded = json.loads(file.read_text())
    if recorded["machine"] != machine():
        print(f"written on another machine, which may round differently: {recorded['machine']}; this one: {machine()}")
    differ: Counter[str] = Counter()
    for run, before in recorded["runs"].items():
        try:
            names = differing(before, hashes(run, data[RUNS[run][2]]))
        except Exception as error:  # whatever became of this run, the others are compared
            names = [" ".join(f"{type(error).__name__}: {error}".split())]
        if names:
            print(f"{run}: {', '.join(names)}")
            differ[kind_of(run)] += 1
    for kind, count in Counter(map(kind_of, recorded["runs"])).items():
        print(f"{kind}: {differ[kind]} of {count} runs differ")
    print(f"{differ.total()} of {len(recorded['runs'])} runs differ ({time.process_time():.0f} s of processor time)")
    return int(any(differ[kind] for kind in PAPER))


if __name__ == "__main__":
    sys.exit(main())
