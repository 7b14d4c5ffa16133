# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Compiled iterations of linear models: what `core.iteration.iterate` says, in as few passes over memory as possible.

    begin      Events 1 and 2: who fires, and which links are used
    step_rows  Events 3 and 4 of some devices: W(k+1) = P(k) W(k) - alpha(k) G(k), and how far W(k+1) has drifted
    stretch    many iterations on one graph, while everything is in the cache; `stretch_of` makes it of other passes

Each row of W(k+1) is made while its gradient is in the cache. Until an iteration is known to be finite, it has changed
neither W(k) nor w_hat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from efhc.base.compiling import as_written
from efhc.kernels.linear_loops import Room, Span, TrainingInputs, linear_row, room_for
from efhc.kernels.model_loops import (
    TILE,
    TileRoom,
    added_up,
    copy_rows,
    find_mixture,
    mix_row_and_drift,
    mix_tile,
    spread_tiles,
    tile_room,
)


class Buffers(NamedTuple):
    """The three arrays (m, n) that a run computes in. Loops and drivers write to them; `drivers.lockstep` owns them."""

    models: Any
    """W(k)"""
    last_broadcast: Any
    """w_hat"""
    spare: Any
    """Takes the gradients, and then W(k+1)."""
    drifts: Any
    """(1/n)^(1/2) ||w_i - w_hat_i|| of each device; NaN where it is not known."""


class StretchInputs(NamedTuple):
    """What the iterations of a stretch are given."""

    new_links: Any
    """For each link, whether it is new at the first iteration."""
    thresholds: Any
    """(iterations, devices)"""
    step_sizes: Any


class Outcome(NamedTuple):
    """What the iterations of a stretch did, one row per iteration."""

    fired: Any
    losses: Any
    consensus_errors: Any


class StepInputs(NamedTuple):
    """One iteration."""

    samples: Any
    """Of all devices, end to end."""
    upcoming: Any
    """Those of the next iteration."""
    used: Any
    """v_ij of each link."""
    fired: Any
    """v_i of each device."""
    alpha: Any
    looks: Any
    """Whether the drifts of the new models are needed."""
    losses: Any
    drifts: Any
    """Take the losses, and the drifts of the new models."""


class StretchRoom(NamedTuple):
    """Memory for a stretch."""

    samples: Room
    tile: TileRoom
    spreads: Any
    """Per tile, the spread of its columns."""
    drifts: Any
    """Of the new models."""
    used: Any
    """v_ij of each link."""


def stretch_room(models: Any, inputs: TrainingInputs, links: int) -> StretchRoom:
    """Memory for the iterations of a stretch on a graph with this number of links."""
    devices, n = models.shape
    spreads, drifts, used = np.empty(-(-n // TILE)), np.empty(devices), np.empty(links, bool)
    return StretchRoom(room_for(models, inputs), tile_room(models.dtype), spreads, drifts, used)


@as_written
def needs_drifts(thresholds):
    """Whether it depends on a drift who fires: a threshold of 0 is always reached, one that is infinite never."""
    open_ones = 0
    for i in range(len(thresholds)):
        open_ones += 0 < thresholds[i] < np.inf
    return open_ones > 0


@as_written
def is_finite(losses):
    """Whether all losses are finite."""
    finite = 0
    for i in range(len(losses)):
        finite += np.isfinite(losses[i])
    return finite == len(losses)


@as_written
def begin(links, thresholds, drifts, used, fired):
    """Events 1 and 2: fired[i] = drift_i >= threshold_i; used[e] becomes true where an end of link e fired."""
    decided = not needs_drifts(thresholds)
    for i in range(len(fired)):
        fired[i] = thresholds[i] <= 0 if decided else drifts[i] >= thresholds[i]
    for e in range(len(used)):
        used[e] = used[e] or fired[links.ends[e, 0]] or fired[links.ends[e, 1]]


@as_written
def step_rows(room, buffers, inputs, loss, ends, links, step, low, high):
    """Events 3 and 4 of the devices links.order[low:high]: W(k+1) in `spare`, and the losses and drifts of `step`."""
    models, spare, last_broadcast = buffers.models, buffers.spare, buffers.last_broadcast
    order = links.order
    for position in range(low, high):
        i = order[position]
        if position + 1 < high:
            j, samples = order[position + 1], step.samples
        else:
            j, samples = order[low], step.upcoming
        mine, upcoming = Span(step.samples, ends[i], ends[i + 1]), Span(samples, ends[j], ends[j + 1])
        step.losses[i] = linear_row(models, i, inputs, loss, mine, upcoming, room, spare, i)
        mixture = find_mixture(links, step.used, i, step.alpha)
        if step.looks:
            known = models if step.fired[i] else last_broadcast
            step.drifts[i] = mix_row_and_drift(models, mixture, spare, known, i)
        else:
            mix_tile(models, mixture, spare, 0, models.shape[1])


def stretch_of(step_devices: Any, add_up_tiles: Any, copy_models: Any) -> Callable[..., Any]:
    """Return the loop over iterations, made of `step_rows`, `spread_tiles` and `copy_rows` or what does the same."""

    def stretch(room, buffers, inputs, loss, batches, links, plan, outcome):
        """Make iterations 0 .. len(plan.step_sizes)-1 of linear models on one graph.

        Returns how many were made, and where W is.
        An iteration is made whole or not at all: where a loss or a model is not finite, it is not made and the stretch
        ends. `buffers.drifts` must be known if the first thresholds need them.
        """
        models, last_broadcast, spare, drifts = buffers
        thresholds, used = plan.thresholds, room.used
        iterations, devices = thresholds.shape
        for e in range(len(used)):
            used[e] = plan.new_links[e]
        for k in range(iterations):
            fired = outcome.fired[k]
            begin(links, thresholds[k], drifts, used, fired)
            following = min(k + 1, iterations - 1)
            looks = needs_drifts(thresholds[following])
            samples = batches.samples[k % len(batches.samples)]
            upcoming = batches.samples[following % len(batches.samples)]
            step = StepInputs(samples, upcoming, used, fired, plan.step_sizes[k], looks, outcome.losses[k], room.drifts)
            now = Buffers(models, last_broadcast, spare, drifts)
            step_devices(room.samples, now, inputs, loss, batches.ends, links, step, 0, devices)
            if not is_finite(outcome.losses[k]):
                return k, now
            add_up_tiles(room.tile, spare, room.spreads, 0, len(room.spreads))
            outcome.consensus_errors[k] = added_up(room.spreads)
            if not np.isfinite(outcome.consensus_errors[k]):
                return k, now
            used[:] = False
            for i in range(devices):
                drifts[i] = room.drifts[i] if looks else np.nan
            if fired.all():
                models, last_broadcast, spare = spare, models, last_broadcast
            else:
                copy_models(models, last_broadcast, fired, 0, devices)
                models, spare = spare, models
        return iterations, Buffers(models, last_broadcast, spare, drifts)

    return stretch


stretch = as_written(stretch_of(step_rows, spread_tiles, copy_rows))
