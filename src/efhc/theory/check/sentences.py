"""A check in words. The sentences are those of `outcome.FINDINGS`."""

from __future__ import annotations

import math

from efhc.theory.check.outcome import FINDINGS, SUBJECTS, Check, Value


def title(check: Check) -> str:
    """What a check is about."""
    return SUBJECTS[check.subject][0]


def sentence(check: Check) -> str:
    """What was found, in one sentence."""
    template = next(found[check.reason] for found in FINDINGS[check.subject].values() if check.reason in found)
    places = {"iteration": check.iteration, "device": check.device}
    text = template.format(**{**places, **check.values, **_phrases(check)})
    if check.values.get("estimate"):
        text += " (L is an estimate)"
    return text if check.seed is None else f"seed {check.seed}: {text}"


def verdict_text(check: Check) -> str:
    """The verdict, with where and by whom it was broken."""
    where = "" if check.iteration is None else f" at iteration {check.iteration}"
    who = "" if check.device is None else f" by device {check.device}"
    return f"{check.verdict}{where}{who}"


def in_one_line(check: Check) -> str:
    """Name, place and sentence, for a warning."""
    return f"{printed_name(check.label)} ({title(check)}) at iteration {check.iteration}: {sentence(check)}"


def _phrases(check: Check) -> dict[str, str]:
    """Parts of sentences that depend on a value."""
    values = dict(check.values)
    phrases = {"at_most": "at most " if values.get("at_most") else ""}
    if check.subject == "information-flow":
        phrases["seen"] = _seen(values.get("observed"), values.get("observed_censored"))
        phrases["promise"] = "expected from the B1 and B2 seen" if values.get("expected") else "promised"
    if check.subject == "noise":
        phrases["noise_from"] = f", from {values['draws']} {values['of']} per device" if "draws" in values else ""
    if check.subject == "contraction":
        known = values.get("looked") == values.get("of")
        observed = float(values.get("observed") or math.nan)
        phrases["b_is"] = "B is infinite" if math.isinf(observed) else f"B >= {observed:.0f}"
        phrases["rho_is"] = f"rho {'=' if known else 'at least'} {values.get('rho', math.nan):.6g}"
    if check.subject.endswith("-bound"):
        phrases["seed_s"] = "seed" if values.get("seeds") == 1 else "seeds"
    if check.subject == "rate" and "promised" in values:
        proof = "proved" if values["proved"] else "stated for this theta, proved only for theta = Q/(Q+1)"
        phrases["rate"] = f"that of the paper's rate {values['text']} ({proof}) {values['promised']:.3f}"
    return phrases


def _seen(observed: Value, censored: Value) -> str:
    if not isinstance(observed, int | float) or math.isinf(observed):
        return "never connected in this run"
    return f"B {'>=' if censored else '='} {observed:.0f} observed in this run"


PRINTED = {
    "alg:efhc": "Algorithm 1",
    "assump:weights": "Assumption III.1",
    "assump:smooth_convex_graddiv": "Assumption III.2",
    "assump:graderror": "Assumption III.3",
    "assump:stepsizes": "Assumption III.4",
    "assump:conn": "Assumption III.5",
    "proposition:conn": "Proposition III.6",
    "lemma:harnessing:spectral": "Lemma III.7",
    "eqn:PhikPsikRecursive": "Eq. (19)",
    "proposition:nonIncreasing": "Proposition III.14",
    "theorem:constant": "Theorem III.15",
    "theorem:diminishing": "Theorem III.17",
    "appendix:generalTheta": "Appendix I",
    "lemma:nonconvex_lossdec": "Lemma K.3",
    "theorem:nonconvex": "Theorem K.8",
}


def printed_name(label: str) -> str:
    """The name that the printed paper has for a label, which may end in a part: `assump:conn-(b)`."""
    whole, dash, part = label.partition("-(")
    return PRINTED[whole] + (f"({part}" if dash else "")
