"""Who will fire when, before a run: from a rehearsal of its first iterations."""

from __future__ import annotations

import numpy as np

from efhc.core.arrays import Flags, Floats

LATEST = 5
"""Broadcasts that tell how fast a device drifts: nearer to the optimum it drifts more slowly."""


def drift_speeds(drifts: Floats, fired: Flags, step_sizes: Floats) -> Floats:
    """How fast each device drifts from its last broadcast, per unit of step size: v_i.

    A device that broadcast at iteration t has drifted by about v_i (alpha(t) + ... + alpha(k-1)) at iteration k. From
    a rehearsal: `drifts` and `fired`, (iterations, devices), and alpha(k), `step_sizes`. v_i is the median over its
    latest broadcasts; of a device that did not fire, where it got to in the end.
    """
    travelled = np.concatenate([[0.0], np.cumsum(step_sizes)])
    since = np.zeros(drifts.shape[1])  # travelled at the last broadcast; at k = 0 all start from their last broadcast
    speeds: list[list[float]] = [[] for _ in since]
    latest = np.zeros_like(since)
    for k, (drift, now) in enumerate(zip(drifts, fired, strict=True)):
        distance = travelled[k] - since
        moved = distance > 0
        latest[moved] = drift[moved] / distance[moved]
        for device in np.flatnonzero(now & moved):
            speeds[device].append(float(latest[device]))
        since[now] = travelled[k]
    return np.array([np.median(seen[-LATEST:]) if seen else last for seen, last in zip(speeds, latest, strict=True)])


def predicted_firing(speeds: Floats, step_sizes: Floats, thresholds: Floats, since: Floats | None = None) -> Flags:
    """v_i(k) for the iterations of `step_sizes`, (iterations, devices): i fires once its drift reaches its threshold.

    `thresholds`, (iterations, devices); drift = v_i times what was travelled since its last broadcast, and `since`
    tells how much that was before the first of these iterations.
    """
    travelled = np.zeros_like(speeds) if since is None else since.astype(np.float64)
    fired = np.empty(thresholds.shape, dtype=bool)
    for k, alpha in enumerate(step_sizes.tolist()):
        fired[k] = speeds * travelled >= thresholds[k]
        travelled = np.where(fired[k], 0.0, travelled) + alpha
    return fired
