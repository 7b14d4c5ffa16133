"""How checks are worded: every pair of subject and reason has a sentence, and labels have the paper's names."""

from __future__ import annotations

import ast
import string
from pathlib import Path
from typing import get_args

import pytest

import efhc.theory
from efhc.theory.check.outcome import Check, Subject
from efhc.theory.check.paper_labels import PRINTED, printed_name
from efhc.theory.check.sentences import SENTENCES, TITLES, in_one_line, sentence, title

THEORY = Path(efhc.theory.__file__).parent


def test_every_subject_has_a_title_and_sentences():
    assert set(TITLES) == set(SENTENCES) == set(get_args(Subject))


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (
            Check("physical-graph", "assump:conn-(a)", "not checkable", "censored", {"B1": 381, "since": 20}),
            "B1 >= 381: not connected from iteration 20 to the end of the run",
        ),
        (
            Check(
                "broadcasts", "assump:conn-(b)", "held", "window", {"B2": 5, "iterations": 9, "at_most": True}, seed=3
            ),
            "seed 3: at most B2 = 5 in these 9 iterations",
        ),
        (
            Check(
                "information-flow",
                "proposition:conn",
                "not checkable",
                "vacuous",
                {"promised": 762, "observed": 381, "observed_censored": True},
            ),
            "B = 762 promised, longer than the run; B >= 381 observed",
        ),
        (
            Check(
                "contraction",
                "lemma:harnessing:spectral",
                "held",
                "contracts",
                {"rho": 0.5, "B": 5, "kind": "given", "looked": 4, "of": 8},
            ),
            "rho at least 0.5 over 4 of 8 windows of B = 5 (given)",
        ),
        (
            Check(
                "step-size-limit",
                "theorem:constant",
                "not checkable",
                "above",
                {"alpha": 0.1, "limit": 0.05, "times": 2.0, "estimate": True},
            ),
            "alpha(0) = 0.1, limit 0.05: 2 times too large (L is an estimate)",
        ),
        (
            Check(
                "rate",
                "appendix:generalTheta",
                "held where looked",
                "as-fast",
                {"slope": -1, "low": -2, "high": -0.5, "promised": -0.3, "text": "k^-0.3", "proved": False},
            ),
            "slope -1.000 [-2.000, -0.500] over these k, that of the paper's rate k^-0.3 "
            "(stated for this theta, proved only for theta = Q/(Q+1)) -0.300",
        ),
        (
            Check("weights", "assump:weights-(b)", "broken", "row-sum", {"off": 0.25}, 7, 2),
            "row 2 sums to 1 only within 0.25",
        ),
        (
            Check(
                "consensus-bound",
                "eqn:PhikPsikRecursive",
                "undecided",
                "few-seeds",
                {"measured": 0.5, "bound": 2.0, "seeds": 1, "points": 9},
            ),
            "at the end 0.5, bound 2 on a mean, which 1 seed cannot decide",
        ),
    ],
    ids=lambda value: value.reason if isinstance(value, Check) else "",
)
def test_sentences(check, words):
    assert sentence(check) == words


def test_a_warning_is_one_line():
    check = Check("broadcasts", "assump:conn-(b)", "broken", "demanded", {"window": 8}, 7, 2)
    assert title(check) == "broadcasts"
    assert in_one_line(check) == (
        "Assumption III.5(b) (broadcasts) at iteration 7: "
        "device 2 did not fire in the 8 iterations up to 7, the window demanded"
    )


def test_no_sentence_names_a_label_of_the_latex():
    for sentences in SENTENCES.values():
        for text in sentences.values():
            assert not any(label in text for label in PRINTED)
            assert list(string.Formatter().parse(text))


def checks_made() -> list[ast.Call]:
    files = [*THEORY.rglob("*.py"), *(THEORY.parent / "experiments" / "studies").glob("theory_*.py")]
    calls = [node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Check"]


def test_every_reason_that_code_names_has_a_sentence():
    """A reason is a code in the source; one without a sentence would only fail when it is met."""
    reasons = {reason for sentences in SENTENCES.values() for reason in sentences}
    named = {
        part.value
        for call in checks_made()
        for part in ast.walk(call.args[3])
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }
    assert len(checks_made()) > 40
    assert named <= reasons


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("assump:smooth_convex_graddiv-(a)", "Assumption III.2(a)"),
        ("assump:conn-(b)", "Assumption III.5(b)"),
        ("assump:stepsizes", "Assumption III.4"),
        ("proposition:conn", "Proposition III.6"),
        ("theorem:constant", "Theorem III.15"),
        ("theorem:diminishing", "Theorem III.17"),
        ("theorem:nonconvex", "Theorem K.8"),
        ("lemma:nonconvex_lossdec", "Lemma K.3"),
        ("eqn:PhikPsikRecursive", "Eq. (19)"),
        ("appendix:generalTheta", "Appendix I"),
        ("alg:efhc", "Algorithm 1"),
    ],
)
def test_printed_names(label, name):
    assert printed_name(label) == name
