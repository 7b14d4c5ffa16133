"""How checks are worded: every finding that code names has a verdict and a sentence, and labels have printed names."""

from __future__ import annotations

import ast
from pathlib import Path

import efhc.theory
from efhc.theory.findings import FINDINGS, PRINTED, SUBJECTS, Certainty, finding, printed_name

THEORY = Path(efhc.theory.__file__).parent


def test_every_subject_has_a_printed_name_and_one_verdict_per_reason():
    assert list(FINDINGS) == list(SUBJECTS)
    for subject, (_, label) in SUBJECTS.items():
        assert printed_name(label)
        reasons = [reason for reasons in FINDINGS[subject].values() for reason in reasons]
        assert len(set(reasons)) == len(reasons)
        sentences = [text for reasons in FINDINGS[subject].values() for text in reasons.values()]
        assert not any(label in text for text in sentences for label in PRINTED)


def test_what_the_config_leaves_to_chance_is_held_where_looked():
    assert finding("contraction", "contracts").verdict == "held"
    assert finding("contraction", "contracts", certain=False).verdict == "held where looked"
    assert finding("contraction", "does-not", certain=False).verdict == "broken"
    assert Certainty().flow
    assert not Certainty(links=False).flow
    assert not Certainty(firing=False).flow


def test_a_warning_is_one_line():
    check = finding("broadcasts", "demanded", {"window": 8}, 7, 2)
    assert check.title == "broadcasts"
    assert check.warning == (
        "Assumption III.5(b) (broadcasts) at iteration 7: "
        "device 2 did not fire in the 8 iterations up to 7, the window demanded"
    )


def test_every_reason_that_code_names_is_a_finding():
    """A reason is a code in the source; one without a sentence would only fail when it is met."""
    files = [*THEORY.rglob("*.py"), *(THEORY.parent / "experiments" / "studies").glob("theory_*.py")]
    calls = [node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    places = {"finding": 1, "Check": 3}
    reasons = [
        call.args[places[call.func.id]]
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in places and len(call.args) > places[call.func.id]
    ]
    named = {
        part.value
        for reason in reasons
        for part in ast.walk(reason)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }
    assert len(reasons) > 40
    assert named <= {reason for subject in FINDINGS.values() for reasons in subject.values() for reason in reasons}
