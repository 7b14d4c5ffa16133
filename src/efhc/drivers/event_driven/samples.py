"""A sample of a run: how good the models are, and how far apart. Nothing is changed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from efhc.base.arrays import Flags, Floats
from efhc.core.arithmetic import finite_rows
from efhc.core.state import Diverged, Local
from efhc.kernels.compiled_arithmetic import consensus_error
from efhc.learning.backends.backend import ScoresNotFinite
from efhc.learning.learner import Learner


def quality(
    models: Floats, local: Local, when: str, learner: Learner, threads: int, diverged: Callable[[Flags], Diverged]
) -> tuple[Floats, tuple[float | None, ...]]:
    """Return the accuracies of the devices that are there, and a summary of them and of their models.

    The summary is the mean, least and greatest accuracy, that of the mean model, and the consensus error. All are None
    if nobody is there. `diverged` makes the error for models that are not finite; `when` is said in others.
    """
    if not len(models):
        return np.empty(0), (None, None, None, None, None)
    error = consensus_error(models, threads)
    if not math.isfinite(error):
        raise diverged(finite_rows(models))
    try:
        accuracies, of_mean = learner.accuracies(models, local)
    except ScoresNotFinite as failure:
        raise failure.about(when) from failure
    summary = float(accuracies.mean()), float(accuracies.min()), float(accuracies.max()), of_mean, error
    return accuracies, summary
