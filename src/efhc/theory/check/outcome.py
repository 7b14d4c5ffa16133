"""How the check of one assumption or promise came out: codes and values, no words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

Verdict = Literal["held", "held where looked", "undecided", "not checkable", "broken"]
"""What a check can know, from the best to the worst.

held                it holds in every iteration of the run, or for every model, and all of that was looked at
held where looked   it speaks of more than was looked at, and nothing that was looked at breaks it
undecided           it is about means, and the seeds are too few or too different to tell
not checkable       there is nothing to hold the run against
broken              something that was looked at contradicts it
"""

Subject = Literal[
    "weights",
    "links-used",
    "same-run",
    "physical-graph",
    "broadcasts",
    "information-flow",
    "contraction",
    "smoothness",
    "convexity",
    "diversity",
    "noise",
    "step-sizes",
    "step-size-limit",
    "optimisation-bound",
    "consensus-bound",
    "gradient-bound",
    "rate",
]
"""What a check is about."""

Value = float | int | str | bool | None


class Check(NamedTuple):
    """One assumption, or one promise, of the paper."""

    subject: Subject
    label: str
    """Its label in the paper's LaTeX, `assump:conn-(b)`."""
    verdict: Verdict
    reason: str
    """Why, as a code; `efhc.theory.check.sentences` has a sentence for each pair of subject and reason."""
    values: Mapping[str, Value] = MappingProxyType({})
    """The numbers of that sentence."""
    iteration: int | None = None
    """Where it broke."""
    device: int | None = None
    """Who broke it."""
    seed: int | None = None
    """In which run, where there are several and they differ."""

    @property
    def severity(self) -> int:
        """The place of the verdict among all, from the best to the worst."""
        return get_args(Verdict).index(self.verdict)


def worst_checks(seeds: Sequence[int], by_seed: Sequence[Sequence[Check]]) -> list[Check]:
    """Return the worst check of each subject; if several seeds are equally bad, that of the first.

    `by_seed` holds the checks of each of `seeds`, the same subjects in the same order.
    """
    together = []
    for checks in zip(*by_seed, strict=True):
        worst = max(checks, key=lambda check: check.severity)
        if worst.severity > 0 and any(check != checks[0] for check in checks):
            worst = worst._replace(seed=seeds[checks.index(worst)])
        together.append(worst)
    return together
