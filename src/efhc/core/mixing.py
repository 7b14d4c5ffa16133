"""Event 3: neighbours average."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from efhc import kernels
from efhc.base.arrays import Flags, Floats
from efhc.base.threads import in_ranges
from efhc.core.graph import Graph


def mixing_matrix(graph: Graph, used: Flags) -> csr_array:
    """P: p_ij = beta_ij on used links, p_ii = 1 - sum_j p_ij.

    The law in one place, for tests and theory; `mix_and_descend` multiplies by it without writing it down.
    Symmetric, doubly stochastic and with p_ii > 0, whichever links are used: mixing never moves the mean model.
    """
    devices = np.arange(graph.devices)
    i, j = graph.links[used].T
    beta = graph.metropolis_weights[used]
    given_away = np.bincount(i, beta, graph.devices) + np.bincount(j, beta, graph.devices)
    entries = np.concatenate([beta, beta, 1.0 - given_away])
    rows, columns = np.concatenate([i, j, devices]), np.concatenate([j, i, devices])
    return csr_array((entries, (rows, columns)), shape=(graph.devices, graph.devices))


def mix_and_descend(
    graph: Graph, used: Flags, models: Floats, gradients: Floats, step_size: float, threads: int = 1
) -> Floats:
    """P W - alpha G in the memory of G: one pass over the rows of W, P = `mixing_matrix(graph, used)`.

    W: `models`; G: `gradients`, which is overwritten; alpha: `step_size`. Unused links are not looked at.
    """
    starts, neighbours, link_of, order = graph.rows
    alpha, beta = models.dtype.type(step_size), graph.metropolis_weights.astype(models.dtype)
    arguments = (order, starts, neighbours, link_of, used, beta, models, gradients, alpha)
    in_ranges(kernels.mix_rows, arguments, graph.devices, threads)
    return gradients
