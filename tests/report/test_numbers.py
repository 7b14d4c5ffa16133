"""Numbers as people read them, and what it takes to reach a target if not all seeds do."""

from __future__ import annotations

import pytest

from efhc.report.numbers import MEGABYTE, cost_words, number_words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (10000, "10,000"),
        (10000.0, "10,000"),
        (31860.4, "31,860"),
        (0.3, "0.3"),
        (864.21, "864.2"),
        (1e-7, "1e-07"),
        (12, "12"),
        (True, "True"),
        ("ring", "ring"),
        (0, "0"),
    ],
)
def test_numbers_are_written_for_people(value, words):
    assert number_words(value) == words


@pytest.mark.parametrize(
    ("reached", "without", "words"),
    [(38380.0, None, "38,380"), (40.0, 60.0, "40 / > 60"), (None, 60.0, "> 60"), (None, None, "")],
)
def test_what_was_spent_in_vain_is_told_apart(reached, without, words):
    assert cost_words(reached, without) == words


def test_bytes_are_shown_in_megabytes():
    assert cost_words(1.25e9, 2e6, MEGABYTE) == "1,250 / > 2"
