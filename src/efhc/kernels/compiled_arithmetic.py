"""The arithmetic of an iteration in compiled loops, spread over threads. It agrees with `core.arithmetic` to rounding.

Unlike the functions of `core`, those marked "in place" write to their arguments.
"""

from __future__ import annotations

import numpy as np

from efhc.base.arrays import Flags, Floats
from efhc.base.threads import in_ranges
from efhc.core.graph import Graph
from efhc.kernels import model_loops as loops


def drift(models: Floats, last_broadcast: Floats, threads: int = 1) -> Floats:
    """(1/n)^(1/2) ||w_i - w_hat_i||_2 per device, summed in double precision."""
    drifts = np.empty(len(models))
    in_ranges(loops.drift_rows, (models, last_broadcast, drifts), len(models), threads)
    return drifts


def consensus_error(models: Floats, threads: int = 1) -> float:
    """sum_i ||w_i - w_bar||^2, summed in double precision."""
    spreads = np.empty(-(-models.shape[1] // loops.TILE))
    spread_tiles(models, spreads, threads)
    return float(loops.added_up(spreads))


def spread_tiles(models: Floats, spreads: Floats, threads: int) -> None:
    """Write the spread of every tile of columns to `spreads`."""

    def of_range(low: int, high: int) -> None:
        loops.spread_tiles(loops.tile_room(models.dtype), models, spreads, low, high)

    in_ranges(of_range, (), len(spreads), threads)


def links_of(graph: Graph, precision: np.dtype[np.floating], weights: Floats | None = None) -> loops.GraphLinks:
    """Return the links of a graph in the form that the loops take. Default of `weights`: those of Metropolis."""
    starts, neighbours, link_of, order = graph.rows
    beta = (graph.metropolis_weights if weights is None else weights).astype(precision)
    room = np.empty(len(neighbours), np.int64), np.empty(len(neighbours), precision)
    return loops.GraphLinks(order, starts, neighbours, link_of, graph.links, beta, *room)


def mix_and_descend(
    graph: Graph,
    used: Flags,
    models: Floats,
    gradients: Floats,
    step_size: float,
    threads: int = 1,
    weights: Floats | None = None,
) -> Floats:
    """P W - alpha G in one pass over the rows of W. In place: the result takes the memory of `gradients`."""
    alpha = models.dtype.type(step_size)
    arguments = (links_of(graph, models.dtype, weights), used, models, gradients, alpha)
    in_ranges(loops.mix_rows, arguments, graph.devices, threads)
    return gradients
