"""How the check of an assumption or promise can come out: for each subject its verdicts, their reasons, and a sentence.

Nothing else decides a verdict, but for what a config leaves to chance (`Certainty`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

Verdict = Literal["held", "held where looked", "undecided", "not checkable", "broken"]
"""What a check can know, from the best to the worst.

held                it was met in every iteration of the run, all of which were looked at, or is proved for every model
held where looked   it is about more than was looked at, and nothing that was looked at breaks it
undecided           it is about means, and the seeds are too few or too different to tell
not checkable       there is nothing to compare the run with
broken              something that was looked at contradicts it
"""

Value = float | int | str | bool | None


class Check(NamedTuple):
    """One assumption, or one promise, of the paper."""

    subject: str
    """What it is about: a key of `SUBJECTS`."""
    label: str
    """Its label in the paper's LaTeX, `assump:conn-(b)`."""
    verdict: Verdict
    reason: str
    """Why, as a code of `FINDINGS`."""
    values: Mapping[str, Value] = MappingProxyType({})
    """The numbers of the sentence."""
    iteration: int | None = None
    """The iteration at which it broke."""
    device: int | None = None
    """The device that broke it."""
    seed: int | None = None
    """The seed of the run, where there are several and they differ."""

    @property
    def title(self) -> str:
        """What the check is about."""
        return SUBJECTS[self.subject][0]

    @property
    def printed_label(self) -> str:
        """The name that the printed paper has for `label`."""
        return printed_name(self.label)

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        template = next(found[self.reason] for found in FINDINGS[self.subject].values() if self.reason in found)
        places = {"iteration": self.iteration, "device": self.device}
        text = template.format(**{**places, **self.values, **_phrases(self.subject, dict(self.values))})
        if self.values.get("estimate"):
            text += " (L is an estimate)"
        return text if self.seed is None else f"seed {self.seed}: {text}"

    @property
    def place(self) -> str:
        """Where and by whom it was broken: " at iteration 3 by device 0"; empty if that is unknown."""
        where = "" if self.iteration is None else f" at iteration {self.iteration}"
        return where if self.device is None else f"{where} by device {self.device}"

    @property
    def warning(self) -> str:
        """Name, iteration and sentence in one line."""
        return f"{self.printed_label} ({self.title}) at iteration {self.iteration}: {self.sentence}"


class Certainty(NamedTuple):
    """What the config makes certain of all iterations, those after the run included. The rest holds where looked."""

    links: bool = True
    """The physical links, hence B1. Not where they come and go by chance, or by code of your own."""
    firing: bool = True
    """The broadcasts, hence B2. Not where devices fire by independent coins."""

    @property
    def flow(self) -> bool:
        """The links used, and all that rests on a B."""
        return self.links and self.firing


def finding(
    subject: str,
    reason: str,
    values: Mapping[str, Value] = MappingProxyType({}),
    iteration: int | None = None,
    device: int | None = None,
    *,
    label: str | None = None,
    certain: bool = True,
) -> Check:
    """Return the check with the verdict that `FINDINGS` has for its reason.

    What is not `certain` is at best held where looked. `label` defaults to that of the subject.
    """
    (verdict,) = (verdict for verdict, reasons in FINDINGS[subject].items() if reason in reasons)
    if verdict == "held" and not certain:
        verdict = "held where looked"
    return Check(subject, label or SUBJECTS[subject][1], verdict, reason, values, iteration, device)


def worst_checks(seeds: Sequence[int], by_seed: Sequence[Sequence[Check]]) -> list[Check]:
    """Return the worst check of each subject; if several seeds are equally bad, that of the first.

    `by_seed` holds the checks of each of `seeds`, the same subjects in the same order.
    """
    together = []
    for checks in zip(*by_seed, strict=True):
        worst = max(checks, key=lambda check: get_args(Verdict).index(check.verdict))
        if worst.verdict != "held" and any(check != checks[0] for check in checks):
            worst = worst._replace(seed=seeds[checks.index(worst)])
        together.append(worst)
    return together


def _phrases(subject: str, values: dict[str, Value]) -> dict[str, str]:
    """Return the parts of sentences that depend on a value."""
    phrases = {"at_most": "at most " if values.get("at_most") else ""}
    if subject == "information-flow":
        phrases["seen"] = _seen(values.get("observed"), values.get("observed_censored"))
        phrases["promise"] = "expected from the B1 and B2 seen" if values.get("expected") else "promised"
    if subject == "noise":
        phrases["noise_from"] = f", from {values['draws']} {values['of']} per device" if "draws" in values else ""
    if subject == "contraction":
        known = values.get("looked") == values.get("of")
        observed = float(values.get("observed") or math.nan)
        phrases["b_is"] = "B is infinite" if math.isinf(observed) else f"B >= {observed:.0f}"
        phrases["rho_is"] = f"rho {'=' if known else 'at least'} {values.get('rho', math.nan):.6g}"
    if subject.endswith("-bound"):
        phrases["seed_s"] = "seed" if values.get("seeds") == 1 else "seeds"
    if subject == "rate" and "promised" in values:
        proof = "proved" if values["proved"] else "stated for this theta, proved only for theta = Q/(Q+1)"
        phrases["rate"] = f"that of the paper's rate {values['text']} ({proof}) {values['promised']:.3f}"
    return phrases


def _seen(observed: Value, censored: Value) -> str:
    if not isinstance(observed, int | float) or math.isinf(observed):
        return "never connected in this run"
    return f"B {'>=' if censored else '='} {observed:.0f} observed in this run"


def printed_name(label: str) -> str:
    """The name that the printed paper has for a label, which may end in a part: `assump:conn-(b)`."""
    whole, dash, part = label.partition("-(")
    return PRINTED[whole] + (f"({part}" if dash else "")


SUBJECTS = {
    "weights": ("transition weights", "assump:weights"),
    "links-used": ("links used", "alg:efhc"),
    "same-run": ("replay", "alg:efhc"),
    "physical-graph": ("physical graph", "assump:conn-(a)"),
    "broadcasts": ("broadcasts", "assump:conn-(b)"),
    "information-flow": ("information flow", "proposition:conn"),
    "contraction": ("contraction", "lemma:harnessing:spectral"),
    "smoothness": ("smoothness", "assump:smooth_convex_graddiv-(a)"),
    "convexity": ("strong convexity", "assump:smooth_convex_graddiv-(b)"),
    "diversity": ("gradient diversity", "assump:smooth_convex_graddiv-(c)"),
    "noise": ("gradient noise", "assump:graderror"),
    "step-sizes": ("step sizes", "assump:stepsizes"),
    "step-size-limit": ("step-size limit", "proposition:nonIncreasing"),
    "optimisation-bound": ("optimisation error under bound", "eqn:PhikPsikRecursive"),
    "consensus-bound": ("consensus error under bound", "eqn:PhikPsikRecursive"),
    "gradient-bound": ("gradient norms under bound", "lemma:nonconvex_lossdec"),
    "rate": ("rate", "appendix:generalTheta"),
}
"""The title of each subject, and its label, to which a check may add a part."""

Findings = Mapping[Verdict, Mapping[str, str]]
"""By verdict, the reasons for it, each with its sentence."""

_DEMANDED = "in the {window} iterations up to {iteration}, the window demanded"
_LOOKED = "models of {points} of the iterations 0 to {iterations}; "
_DRAWN = _LOOKED + "(a) and (c): by the way mini-batches are drawn"
_BELOW = "at the end {measured:.2g} under {bound:.2g}, "
_DELTA = "delta = {delta:.4g} at the mean " + _LOOKED
_WINDOWS = "{rho_is} over {looked} of {of} windows of B = {B} ({kind})"
_SLOPE = "slope {slope:.3f} [{low:.3f}, {high:.3f}]"

_BOUND: Findings = {
    "held where looked": {"below": _BELOW + "with the constants measured at {points} points of the run"},
    "undecided": {
        "few-seeds": "at the end {measured:.2g}, bound {bound:.2g} on a mean; {seeds} {seed_s} cannot decide it",
        "interval": "at the end {measured:.2g}, bound {bound:.2g}; the interval over {seeds} seeds reaches above it",
    },
    "not checkable": {
        "only-start": "only the first models could be looked at",
        "no-optimum": "w* is not known: there is more than one minimiser, or it was not found to within 1e-10",
        "optimum-not-sought": "w* was not computed, because that takes longer than the run; --replay does it",
        "not-looked": "the models were not looked at",
        "infinite-rho": "the bound is infinite: rho is 1",
        "infinite-step": "the bound is infinite: the step size is too large",
        "grows": _BELOW + "but this bound only grows, so it says nothing",
    },
    "broken": {"above": "{measured:.3g} measured, {bound:.3g} promised at k = {k}"},
}

FINDINGS: dict[str, Findings] = {
    "weights": {
        "held": {"sound": "positive, doubly stochastic and symmetric in all {iterations} iterations looked at"},
        "broken": {
            "negative": "a weight of device {device} is negative or not a number",
            "diagonal": "p_ii of device {device} is not positive",
            "not-received": "device {device} weighs a model that it did not receive",
            "ignored": "device {device} gives no weight to a model that it received",
            "row-sum": "row {device} sums to 1 only within {off:.3g}",
            "column-sum": "column {device} sums to 1 only within {off:.3g}",
            "asymmetric": "p_ij and p_ji of device {device} differ",
        },
    },
    "links-used": {
        "held": {"by-rule": "those of Events 1 and 2 in every iteration looked at"},
        "broken": {"stray": "the record of link {i}-{j} differs from what Events 1 and 2 use"},
    },
    "same-run": {
        "held": {
            "fires-as-recorded": "the replay fires as recorded",
            "same": "the replay fires as recorded and ends with the same models",
        },
        "not checkable": {
            "not-made-again": "not replayed, because that takes long; --replay does it",
            "no-theorem": "not replayed, because no theorem could use it; --replay does it",
            "kept": "not replayed: the models that the run kept were looked at",
        },
        "broken": {
            "fires-otherwise": "the replay fires differently from the record, so it is another run",
            "ends-otherwise": "the replay ends with other models than those that were kept",
        },
    },
    "physical-graph": {
        "held": {"window": "{at_most}B1 = {B1:.0f} in these {iterations} iterations"},
        "held where looked": {
            "chance": "{at_most}B1 = {B1:.0f} in these {iterations} iterations; nothing limits it in later ones"
        },
        "not checkable": {"censored": "B1 >= {B1:.0f}: not connected from iteration {since} to the end of the run"},
        "broken": {
            "never-connected": "by this network, the part of device {device} is never connected to the rest again",
            "demanded": "its links do not connect all devices " + _DEMANDED,
        },
    },
    "broadcasts": {
        "held": {"window": "{at_most}B2 = {B2:.0f} in these {iterations} iterations"},
        "held where looked": {
            "coins": "{at_most}B2 = {B2:.0f} in these {iterations} iterations; random firing limits no later B2"
        },
        "not checkable": {
            "censored": "B2 >= {B2:.0f}: device {silent} is silent from iteration {since} to the end of the run"
        },
        "broken": {
            "never-fires": "by this strategy, no device ever fires: B2 is infinite",
            "demanded": "device {device} did not fire " + _DEMANDED,
        },
    },
    "information-flow": {
        "held": {"window": "{at_most}B = {promised:.0f} {promise}, {seen}"},
        "not checkable": {
            "no-windows": "nothing is promised without B1 and B2; {seen}",
            "censored": "nothing is promised, because B1 or B2 may be longer than the run shows; {seen}",
            "vacuous": "B = {promised:.0f} {promise}, longer than the run; {seen}",
        },
        "broken": {
            "longer": "B = {promised:.0f} {promise}, {seen}",
            "demanded": "the links used do not connect all devices " + _DEMANDED,
        },
    },
    "contraction": {
        "held": {"contracts": _WINDOWS},
        "not checkable": {
            "no-window": "the used links do not connect all devices when the run ends: {b_is}, "
            "so no window can be judged",
            "short": _WINDOWS + "; B must be at least {observed:.0f}",
        },
        "broken": {"does-not": _WINDOWS},
    },
    "smoothness": {
        "held": {
            "exact": "L = {L:.4g}",
            "bound": "L = {L:.4g} at most",
        },
        "not checkable": {
            "estimate": "L = {L:.4g}, estimated near the models visited; a larger L may be needed elsewhere"
        },
        "broken": {"kinks": "the loss has kinks, so no finite L exists"},
    },
    "convexity": {
        "held": {
            "exact": "mu = {mu:.4g}",
            "bound": "mu = {mu:.4g} at least",
        },
        "not checkable": {"estimate": "mu = {mu:.3g}, estimated near the models visited"},
        "broken": {
            "flat": "mu = 0 for every device",
            "flat-device": "mu = 0 for device {device}",
        },
    },
    "diversity": {
        "held where looked": {
            "visited": _DELTA + "elsewhere unknown",
            "unbounded": _DELTA + "no delta holds for all w, because the devices' covariances differ",
        },
        "not checkable": {"not-looked": "the models were not looked at"},
    },
    "noise": {
        "held where looked": {
            "estimate": "(b): sigma^2 = {sigma2:.4g} +- {error:.1g} (standard error{noise_from}) at the " + _DRAWN,
            "exact": "(b): sigma^2 = {sigma2:.4g}, exactly, at the " + _DRAWN,
        },
        "not checkable": {"not-looked": "the models were not looked at"},
    },
    "step-sizes": {
        "held": {
            "constant": "constant",
            "summable": "theta = {theta:g}: sum alpha diverges, sum alpha^2 does not",
        },
        "not checkable": {"own-function": "a function of your own, which does not increase in this run"},
        "broken": {
            "rises": "alpha({iteration}) = {alpha:.3g} is larger than the one before",
            "not-positive": "alpha({iteration}) = {alpha:.3g} is not positive",
            "half": "theta = {theta:g}: sum alpha^2 diverges; Theorem III.17 does not need it",
            "not-summable": "theta = {theta:g}: sum alpha^2 diverges",
        },
    },
    "step-size-limit": {
        "held": {"within": "alpha(0) = {alpha:.3g}, limit {limit:.3g}"},
        "not checkable": {
            "no-smoothness": "no theorem applies: L is infinite",
            "no-window": "no limit: used links do not connect all devices when the run ends, so B is not known",
            "short": "B must be at least the observed {observed:.0f}",
        },
        "broken": {
            "above": "alpha(0) = {alpha:.3g}, limit {limit:.3g}: {times:.3g} times too large",
            "none": "alpha(0) = {alpha:.3g}, limit 0: no step size is small enough",
            "above-all": "alpha({iteration}) = {alpha:.3g} is above 1/(8 L) = {limit:.3g}, the limit for every network",
        },
    },
    "optimisation-bound": _BOUND,
    "consensus-bound": _BOUND,
    "gradient-bound": _BOUND,
    "rate": {
        "held where looked": {"as-fast": _SLOPE + " over these k, {rate}"},
        "undecided": {
            "one-seed": _SLOPE + ", {rate}; one seed is too few",
            "slower": _SLOPE + ", {rate}; not reached in this run",
        },
        "not checkable": {"no-rate": _SLOPE + "; the paper has no rate for theta < 0.5"},
    },
}

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
