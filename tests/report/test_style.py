"""One look per strategy in all figures, and titles that say what was run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import efhc
from efhc.report.claims.intervals import interval
from efhc.report.figures import run_title
from efhc.report.figures.style import MOST_LINES, band_of, band_words, strategy_lines
from efhc.report.looks import KNOWN, OTHERS, strategy_colours, strategy_styles

NAMES = st.lists(st.one_of(st.sampled_from([*KNOWN, "mine", "yours"]), st.text()), max_size=12, unique=True)


@given(NAMES)
def test_known_strategies_have_fixed_looks_and_no_two_look_alike(names):
    styles = strategy_styles(names)
    assert list(styles) == names
    assert len(set(styles.values())) == len(names)
    for name in set(names) & set(KNOWN):
        assert styles[name] == KNOWN[name]
    assert strategy_styles(sorted(names)) == styles  # whatever the order
    assert strategy_colours(names) == {name: colour for name, (colour, _) in styles.items()}


def test_a_strategy_of_ones_own_keeps_its_look_in_other_company():
    alone = strategy_styles(["mine"])["mine"]
    assert strategy_styles(["EF-HC", "mine", "ZT"])["mine"] == alone
    assert strategy_styles(["mine", "EF-HC", "Never"])["mine"] == alone


def test_more_strategies_than_looks_are_drawn_all_the_same():
    names = [f"r = {n}" for n in range(2 * len(OTHERS))]
    assert list(strategy_styles(names)) == names


def test_the_title_says_what_was_run():
    assert run_title(efhc.Experiment(devices=4, seeds=(0,))) == "digits, svm, 4 devices, 1 seed"
    assert run_title(efhc.Experiment(name="first try")) == "first try: digits, svm, 10 devices, 3 seeds"


def test_a_plot_of_a_result_has_no_title_and_says_that_to_those_who_do_not_see_it():
    result = efhc.simulate(iterations=4, seeds=(0,))
    figure = result.plot()
    assert figure.get_suptitle() == ""
    assert figure.words == run_title(result.experiment)


def test_marks_do_not_depend_on_the_order_and_are_as_many_as_can_be_told_apart():
    names = ["steady", "ZT", "EF-HC", *(f"s{n}" for n in range(9))]
    lines = strategy_lines(names, names[:5])
    assert lines == {name: strategy_lines(names[::-1], names[4::-1])[name] for name in lines}
    assert (lines["EF-HC"].marker, lines["ZT"].marker) == ("o", "^")
    assert [name for name, line in lines.items() if line.is_behind] == names[5:]
    every = strategy_lines(names)
    assert sum(not line.is_behind for line in every.values()) == MOST_LINES
    assert len({line.marker for line in every.values() if not line.is_behind}) == MOST_LINES


@pytest.mark.parametrize(("seeds", "words"), [([5, 5], "95 % interval over 5"), ([3], "range over 3"), ([1], None)])
def test_a_legend_says_what_bands_are(seeds: list[int], words: str | None):
    said = band_words(seeds)
    assert said is None if words is None else said.startswith(words)


def test_a_band_is_the_interval_of_claims_and_below_five_seeds_the_range():
    values = np.random.default_rng(0).normal(size=(5, 3))
    for got, expected in zip(band_of(values), interval(values)[1:], strict=True):
        assert np.array_equal(got, expected)
    few = band_of(values[:3])
    assert np.array_equal(few[0], values[:3].min(axis=0))
    assert np.array_equal(few[1], values[:3].max(axis=0))
    assert band_of(values[:1]) is None
