"""One look per strategy in all figures, and titles that say what was run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import efhc
from efhc.report.figures import run_title
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
