"""Models, what is known of them, thresholds and codecs, with the numbers that arithmetic finds hard."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from efhc.strategies.parts.codecs import FullCodec, LevelsCodec, SignCodec, TopKCodec

precisions = st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)])

codecs = st.one_of(
    st.just(FullCodec()),
    st.integers(1, 32).map(lambda bits: LevelsCodec(bits=bits)),
    st.just(SignCodec()),
    st.floats(0, 1, exclude_min=True).map(lambda share: TopKCodec(share=share)),
)


class Problem(NamedTuple):
    model: np.ndarray
    known: np.ndarray
    threshold: float


def numbers(precision: np.dtype) -> st.SearchStrategy[float]:
    limits = np.finfo(precision)
    hard = [0, 1, 0.1, limits.tiny, limits.smallest_subnormal, limits.eps, limits.max / 8, limits.max]
    ties = st.sampled_from([float(sign * one) for one in hard for sign in (1, -1)])
    width = 8 * precision.itemsize
    usual = st.floats(-4, 4, width=width)
    return st.one_of(ties, usual, st.floats(width=width, allow_nan=False, allow_infinity=False))


@st.composite
def problems(draw):
    """A finite model, what is known of it, and a threshold, often one that a difference just reaches."""
    precision, n = draw(precisions), draw(st.integers(1, 300))
    known = draw(hnp.arrays(precision, n, elements=numbers(precision)))
    model = draw(st.just(known) | hnp.arrays(precision, n, elements=numbers(precision)))
    if draw(st.booleans()):  # many coordinates that differ, none in a special way
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        known = rng.normal(size=n).astype(precision)
        model = known + (rng.normal(size=n) ** draw(st.sampled_from([0, 1, 3, 9]))).astype(precision)
    reached = differences(model, known).tolist()
    missed = [float(np.nextafter(one, np.inf)) for one in reached if one < np.finfo(np.float64).max]
    threshold = draw(st.sampled_from([0.0, -1.0, np.inf, *reached, *missed]) | st.floats(0, 2))
    return Problem(model, known, threshold)


def differences(model: np.ndarray, known: np.ndarray) -> np.ndarray:
    """|y - x_hat| in the precision of the models, to be compared in double precision."""
    with np.errstate(over="ignore"):
        return np.abs(model - known).astype(np.float64)
