"""How a check is worded: one sentence for each pair of subject and reason, and nothing else decides what is said."""

from __future__ import annotations

import math

from efhc.theory.check.outcome import Check, Subject, Value
from efhc.theory.check.paper_labels import printed_name

TITLES: dict[Subject, str] = {
    "weights": "transition weights",
    "links-used": "links used",
    "same-run": "the run once more",
    "physical-graph": "physical graph",
    "broadcasts": "broadcasts",
    "information-flow": "information flow",
    "contraction": "contraction",
    "smoothness": "smoothness",
    "convexity": "strong convexity",
    "diversity": "gradient diversity",
    "noise": "gradient noise",
    "step-sizes": "step sizes",
    "step-size-limit": "step-size limit",
    "optimisation-bound": "optimisation error under bound",
    "consensus-bound": "consensus error under bound",
    "gradient-bound": "gradient norms under bound",
    "rate": "rate",
}

_DEMANDED = "in the {window} iterations up to {iteration}, the window demanded"
_BOUND: dict[str, str] = {
    "only-start": "only the first models could be looked at",
    "no-optimum": "no w*: there is more than one minimiser, or it was not found to within 1e-10",
    "optimum-not-sought": "w* was not looked for, as that takes longer than the run; --replay does it",
    "not-looked": "the models were not looked at",
    "infinite-rho": "the bound is infinite: rho is 1",
    "infinite-step": "the bound is infinite: the step size is too large",
    "above": "{measured:.3g} measured, {bound:.3g} promised at k = {k}",
    "grows": "at the end {measured:.2g} under {bound:.2g}, but a bound that only grows says nothing",
    "few-seeds": "at the end {measured:.2g}, bound {bound:.2g} on a mean, which {seeds} {seed_s} cannot decide",
    "interval": "at the end {measured:.2g}, bound {bound:.2g}; the interval over {seeds} seeds reaches above the bound",
    "below": "at the end {measured:.2g} under {bound:.2g}, with the constants seen at {points} points",
}

SENTENCES: dict[Subject, dict[str, str]] = {
    "weights": {
        "sound": "positive, doubly stochastic and symmetric in all {iterations} iterations",
        "negative": "a weight of device {device} is negative or not a number",
        "diagonal": "p_ii of device {device} is not positive",
        "not-received": "device {device} weighs a model that it did not receive",
        "ignored": "device {device} gives no weight to a model that it received",
        "row-sum": "row {device} sums to 1 only within {off:.3g}",
        "column-sum": "column {device} sums to 1 only within {off:.3g}",
        "asymmetric": "p_ij and p_ji of device {device} differ",
    },
    "links-used": {
        "by-rule": "those of Events 1 and 2 in every iteration",
        "stray": "link {i}-{j} is recorded otherwise than Events 1 and 2 use it",
    },
    "same-run": {
        "not-made-again": "not made again, as that takes long; --replay does it",
        "no-theorem": "not made again, as no theorem could use it; --replay does it",
        "kept": "not made again: the run kept its models, which were looked at",
        "fires-otherwise": "fires otherwise than recorded, so what was measured is not that run",
        "ends-otherwise": "ends with other models than those that were kept",
        "fires-as-recorded": "fires as recorded",
        "same": "fires as recorded, and ends with the same models",
    },
    "physical-graph": {
        "never-connected": "the part of device {device} is cut off from the rest for good",
        "censored": "B1 >= {B1:.0f}: not connected from iteration {since} to the end of the run",
        "chance": "{at_most}B1 = {B1:.0f} in these {iterations} iterations; nothing limits it in later ones",
        "window": "{at_most}B1 = {B1:.0f} in these {iterations} iterations",
        "demanded": "its links do not connect all devices " + _DEMANDED,
    },
    "broadcasts": {
        "never-fires": "no device ever fires, by this strategy: B2 is infinite",
        "censored": "B2 >= {B2:.0f}: device {silent} is silent from iteration {since} to the end of the run",
        "coins": "{at_most}B2 = {B2:.0f} in these {iterations} iterations; coins exceed every B2 sooner or later",
        "window": "{at_most}B2 = {B2:.0f} in these {iterations} iterations",
        "demanded": "device {device} did not fire " + _DEMANDED,
    },
    "information-flow": {
        "no-windows": "promises nothing without B1 and B2; {seen}",
        "censored": "promises nothing, as B1 or B2 may be longer than the run shows; {seen}",
        "vacuous": "B = {promised:.0f} {promise}, longer than the run; {seen}",
        "window": "{at_most}B = {promised:.0f} {promise}, {seen}",
        "longer": "B = {promised:.0f} {promise}, {seen}",
        "demanded": "the links used do not connect all devices " + _DEMANDED,
    },
    "contraction": {
        "no-window": "used links do not connect all devices when the run ends: {b_is}, which is no B to judge by",
        "short": "{rho_is} over {looked} of {of} windows of B = {B} ({kind}); B must be at least {observed:.0f}",
        "does-not": "{rho_is} over {looked} of {of} windows of B = {B} ({kind})",
        "contracts": "{rho_is} over {looked} of {of} windows of B = {B} ({kind})",
    },
    "smoothness": {
        "kinks": "the loss has kinks: no L is large enough",
        "estimate": "L = {L:.4g}, estimated near the models visited, if there is one",
        "exact": "L = {L:.4g}",
        "bound": "L = {L:.4g} at most",
    },
    "convexity": {
        "estimate": "mu = {mu:.3g}, estimated near the models visited",
        "exact": "mu = {mu:.4g}",
        "bound": "mu = {mu:.4g} at least",
        "flat": "mu = 0 for every device",
        "flat-device": "mu = 0 for device {device}",
    },
    "diversity": {
        "not-looked": "the models were not looked at",
        "visited": "delta = {delta:.4g} at the mean models of {points} of the iterations 0 to {iterations}; "
        "elsewhere unknown",
        "unbounded": "delta = {delta:.4g} at the mean models of {points} of the iterations 0 to {iterations}; "
        "none holds for all w, as the devices' covariances differ",
    },
    "noise": {
        "not-looked": "the models were not looked at",
        "estimate": "(b): sigma^2 = {sigma2:.4g} +- {error:.1g} (standard error{noise_from}) "
        "at the models of {points} of the iterations 0 to {iterations}; (a) and (c): by the way mini-batches are drawn",
        "exact": "(b): sigma^2 = {sigma2:.4g}, exactly, at the models of {points} of the iterations 0 to {iterations}; "
        "(a) and (c): by the way mini-batches are drawn",
    },
    "step-sizes": {
        "constant": "constant",
        "rises": "alpha({iteration}) = {alpha:.3g} is larger than the one before",
        "not-positive": "alpha({iteration}) = {alpha:.3g} is not positive",
        "own-function": "a function of your own, which does not increase in this run",
        "summable": "theta = {theta:g}: sum alpha diverges, sum alpha^2 does not",
        "half": "theta = {theta:g}: sum alpha^2 diverges; Theorem III.17 does without it",
        "not-summable": "theta = {theta:g}: sum alpha^2 diverges",
    },
    "step-size-limit": {
        "no-smoothness": "no theorem applies: L is infinite",
        "no-window": "no limit: used links do not connect all devices when the run ends, so B is not known",
        "short": "B must be at least the observed {observed:.0f}",
        "within": "alpha(0) = {alpha:.3g}, limit {limit:.3g}",
        "above": "alpha(0) = {alpha:.3g}, limit {limit:.3g}: {times:.3g} times too large",
        "none": "alpha(0) = {alpha:.3g}, limit 0: no step size is small enough",
        "above-all": "alpha({iteration}) = {alpha:.3g} is above 1/(8 L) = {limit:.3g}: no network allows that",
    },
    "optimisation-bound": _BOUND,
    "consensus-bound": _BOUND,
    "gradient-bound": _BOUND,
    "rate": {
        "no-rate": "slope {slope:.3f} [{low:.3f}, {high:.3f}]; the paper has no rate for theta < 0.5",
        "one-seed": "slope {slope:.3f} [{low:.3f}, {high:.3f}], {rate}; one seed is too few",
        "as-fast": "slope {slope:.3f} [{low:.3f}, {high:.3f}] over these k, {rate}",
        "slower": "slope {slope:.3f} [{low:.3f}, {high:.3f}], {rate}; not reached in this run",
    },
}


def title(check: Check) -> str:
    """What a check is about."""
    return TITLES[check.subject]


def sentence(check: Check) -> str:
    """What was found, in one sentence."""
    template = SENTENCES[check.subject][check.reason]
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
        return "never connected"
    return f"B {'>=' if censored else '='} {observed:.0f} observed"
