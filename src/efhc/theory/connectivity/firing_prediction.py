"""Predicting who fires when, before a run, from a rehearsal of its first iterations."""

from __future__ import annotations

import numpy as np

from efhc.base.arrays import Flags, Floats

LATEST = 5
"""The number of latest broadcasts that count for a device's speed: nearer to the optimum devices drift more slowly."""


def drift_speeds(drifts: Floats, fired: Flags, step_sizes: Floats) -> Floats:
    """Return v_i, the speed at which each device drifts from its last broadcast, per unit of step size.

    `drifts` and `fired`, (iterations, devices), and `step_sizes`, alpha(k), are those of a rehearsal. A device that
    broadcasts at iteration t and next at k has drifted by v_i (alpha(t) + ... + alpha(k-1)); the result is the median
    of v_i over the `LATEST` broadcasts. For a device that was silent in the second half of the rehearsal, v_i is the
    speed at which its drift grew in that half, since it may have come to a stop.
    """
    travelled = np.concatenate([[0.0], np.cumsum(step_sizes)])
    since = np.zeros(drifts.shape[1])  # travelled at the last broadcast; at k = 0 all start from their last broadcast
    speeds: list[list[float]] = [[] for _ in since]
    for k, (drift, now) in enumerate(zip(drifts, fired, strict=True)):
        for device in np.flatnonzero(now & (travelled[k] > since)):
            speeds[device].append(float(drift[device] / (travelled[k] - since[device])))
        since[now] = travelled[k]
    half, last = len(drifts) // 2, len(drifts) - 1
    distance = travelled[last] - travelled[half]
    gained = (drifts[last] - drifts[half]) / distance if distance > 0 else drifts[last] / max(travelled[last], 1e-300)
    lively: Flags = np.logical_or.reduce(fired[half:], axis=0)
    return np.array(
        [
            np.median(seen[-LATEST:]) if seen and fires else max(late, 0.0)
            for seen, fires, late in zip(speeds, lively, gained, strict=True)
        ]
    )


def predicted_firing(speeds: Floats, step_sizes: Floats, thresholds: Floats, drifted: Floats | None = None) -> Flags:
    """Return who fires at the iterations of `step_sizes`, (iterations, devices).

    A device fires when its drift reaches its threshold; `thresholds` is (iterations, devices). A drift grows by
    v_i alpha(k), where v_i is `speeds`, and starts from 0 after a broadcast. `drifted` is the drift at the first of
    these iterations. Default: 0.
    """
    drift = np.zeros_like(speeds) if drifted is None else drifted.astype(np.float64)
    fired = np.empty(thresholds.shape, dtype=bool)
    for k, alpha in enumerate(step_sizes.tolist()):
        fired[k] = drift >= thresholds[k]
        drift = np.where(fired[k], 0.0, drift) + speeds * alpha
    return fired
