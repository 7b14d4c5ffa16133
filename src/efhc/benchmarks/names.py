"""What `efhc bench` can measure, by name. Importing this is quick, so that a wrong name is refused at once."""

from __future__ import annotations

from collections.abc import Sequence

from efhc.base.errors import InputError, did_you_mean
from efhc.base.extras import require

WORKLOAD_NAMES = (
    "svm-b1",
    "svm-b16",
    "svm-b64",
    "entrywise-b16",
    "svm-20runs",
    "lenet-b16",
    "lenet-b32",
    "resnet18-b16",
    "svm-m1000",
    "svm-m10000",
    "eval-10k",
    "eval-10k-lenet",
)
ALONE = ("limit", "e2e", "scaling", "clocks", "node")
"""Measurements that are asked for alone, and need no PyTorch."""


def check_names(names: Sequence[str]) -> None:
    """Raise an `InputError` for an unknown name, and an `EfhcError` if a package that is needed is not installed."""
    if len(names) == 1 and names[0] in ALONE:
        if names[0] == "node":
            require("node", "efhc bench node")
        return
    for name in names:
        if name not in WORKLOAD_NAMES:
            allowed = f"{', '.join(WORKLOAD_NAMES)}; or {' or '.join(f'`{alone}`' for alone in ALONE)}, alone"
            raise InputError("workload", f"'{name}'{did_you_mean(name, WORKLOAD_NAMES)}", allowed)
    require("deep", "efhc bench")
