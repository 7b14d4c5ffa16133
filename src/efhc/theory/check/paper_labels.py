"""The printed names of what the paper labels in its LaTeX source: `assump:conn-(b)` is Assumption III.5(b).

The paper numbers theorems, assumptions, definitions, lemmas and propositions by one counter per section, and equations
throughout. Code and JSON use the labels, which stay when the paper is renumbered; people read the printed names.
"""

from __future__ import annotations

PRINTED = {
    "alg:efhc": "Algorithm 1",
    "assump:weights": "Assumption III.1",
    "assump:smooth_convex_graddiv": "Assumption III.2",
    "assump:graderror": "Assumption III.3",
    "assump:stepsizes": "Assumption III.4",
    "assump:conn": "Assumption III.5",
    "proposition:conn": "Proposition III.6",
    "lemma:harnessing:spectral": "Lemma III.7",
    "lemma:harnessing:ineqs": "Lemma III.9",
    "lemma:epsilonbounds": "Lemma III.10",
    "lemma:kplus1": "Lemma III.11",
    "lemma:kplusB": "Lemma III.13",
    "eqn:AkCkRecursive": "Eq. (16)",
    "eqn:PhikPsikRecursive": "Eq. (19)",
    "eqn:phiValues": "Eq. (20)",
    "eqn:psiValues": "Eq. (21)",
    "proposition:nonIncreasing": "Proposition III.14",
    "eqn:matEntriesPsiDiminishing": "Eq. (25)",
    "theorem:constant": "Theorem III.15",
    "eqn:optimality_gap": "Eq. (27)",
    "lemma:bernoulli": "Lemma III.16",
    "theorem:diminishing": "Theorem III.17",
    "lemma:summations": "Lemma H.1",
    "appendix:generalTheta": "Appendix I",
    "lemma:generalTheta": "Lemma I.1",
    "lemma:theta1": "Lemma I.2",
    "lemma:nonconvex_lossdec": "Lemma K.3",
    "lemma:B": "Lemma K.5",
    "proposition:nonconvex": "Proposition K.7",
    "theorem:nonconvex": "Theorem K.8",
}


def printed_name(label: str) -> str:
    """The name that the printed paper has for a label, which may end in a part: `assump:conn-(b)`."""
    whole, dash, part = label.partition("-(")
    return PRINTED[whole] + (f"({part}" if dash else "")
