"""Random small problems for property tests, and states of a run to compare."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from efhc.core.graph import Graph
from efhc.core.state import State
from efhc.core.triggers import Bandwidths
from efhc.strategies.paper import EventTriggered, GlobalThreshold, Never, RandomizedGossip, ZeroThreshold


@st.composite
def graphs(draw: st.DrawFn, devices: int | None = None) -> Graph:
    """Any graph, isolated devices and no links at all included."""
    m = devices or draw(st.integers(1, 9))
    pairs = [(i, j) for j in range(m) for i in range(j)]
    kept = draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    return Graph.of(m, [pair for pair, keep in zip(pairs, kept, strict=True) if keep])


@st.composite
def graphs_with_used_links(draw: st.DrawFn) -> tuple[Graph, np.ndarray]:
    graph = draw(graphs())
    used = draw(st.lists(st.booleans(), min_size=len(graph.links), max_size=len(graph.links)))
    return graph, np.array(used, dtype=bool)


def bandwidths(devices: int) -> st.SearchStrategy[Bandwidths]:
    values = st.lists(st.floats(1.0, 1e4), min_size=devices, max_size=devices)
    return st.builds(lambda b, nominal: Bandwidths(np.array(b), nominal), values, st.floats(1.0, 1e4))


def triggers() -> st.SearchStrategy:
    scale = st.floats(0.0, 2e3)
    return st.one_of(
        st.builds(EventTriggered, r=scale),
        st.builds(GlobalThreshold, r=scale, rho=st.sampled_from(["nominal", "mean"])),
        st.just(ZeroThreshold()),
        st.builds(RandomizedGossip, probability=st.none() | st.floats(0.0, 1.0)),
        st.just(Never()),
    )


def copied(state: State) -> State:
    """The state in arrays of its own: a driver uses its arrays again."""
    memory = {name: array.copy() for name, array in state.memory.items()}
    return state._replace(models=state.models.copy(), last_broadcast=state.last_broadcast.copy(), memory=memory)


def assert_same_state(a: State, b: State) -> None:
    """Bit for bit."""
    assert a.k == b.k
    assert np.array_equal(a.models, b.models)
    assert np.array_equal(a.last_broadcast, b.last_broadcast)
    assert a.memory.keys() == b.memory.keys()
    for name in a.memory:
        assert np.array_equal(a.memory[name], b.memory[name]), name
