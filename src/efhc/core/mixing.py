"""Event 3: neighbours average."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from efhc.base.arrays import Flags, Floats
from efhc.core.graph import Graph

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def mixing_matrix(graph: Graph, used: Flags, weights: Floats | None = None) -> csr_array:
    """P: p_ij = beta_ij on used links, p_ii = 1 - sum_j p_ij. Default of the `weights` beta_ij: those of the graph.

    It is symmetric and doubly stochastic with p_ii > 0, whichever links are used: mixing never moves the mean model.
    """
    from scipy.sparse import csr_array

    devices = np.arange(graph.devices)
    i, j = graph.links[used].T
    beta = (graph.weights if weights is None else weights)[used]
    given_away = np.bincount(i, beta, graph.devices) + np.bincount(j, beta, graph.devices)
    entries = np.concatenate([beta, beta, 1.0 - given_away])
    rows, columns = np.concatenate([i, j, devices]), np.concatenate([j, i, devices])
    return csr_array((entries, (rows, columns)), shape=(graph.devices, graph.devices))


@np.errstate(over="ignore", invalid="ignore")
def mix_and_descend(
    graph: Graph, used: Flags, models: Floats, gradients: Floats, step_size: float, weights: Floats | None = None
) -> Floats:
    """P W - alpha G; P: `mixing_matrix(graph, used, weights)`, W: `models`, G: `gradients`, alpha: `step_size`."""
    P = mixing_matrix(graph, used, weights)
    mixed: Floats = (P @ models - step_size * gradients).astype(models.dtype)
    return mixed
