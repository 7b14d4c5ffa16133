"""Every combination of parts that has a meaning, small scenarios for them, and the plain law on a scenario."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import plain_law as plain
from hypothesis import strategies as st

import efhc
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.scenarios.scenario import Scenario

NETWORKS = {
    "static": {"kind": "geometric", "radius": 0.6},
    "random links": {"kind": "random-links", "up_probability": 0.6},
    "waypoint": {"kind": "waypoint", "radius": 0.5, "slowest": 0.02, "fastest": 0.1},
    "rotating": {"kind": "rotating", "period": 2},
}

MIXINGS = ("exchange", "half-steps", "estimates")
Table = dict[str, Any]


class Case(NamedTuple):
    """A strategy as a table of tables, and the experiment that it is tried in."""

    parts: dict[str, Table]
    fields: dict[str, Any]
    seed: int = 3

    def strategy(self) -> Any:
        return efhc.Composed(**self.parts)

    def witnessed(self) -> tuple[Any, Witnessed | None]:
        """The strategy, with a witness of its links and losses if there is anything to see."""
        strategy = self.strategy()
        if self.parts["links"]["kind"] == "all" and "driver" not in self.fields:
            return strategy, None
        witness = Witnessed(strategy.links)
        return efhc.Composed(**{**self.parts, "links": witness}), witness

    @property
    def loss(self) -> float:
        return self.fields.get("driver", {}).get("loss", 0.0)

    def experiment(self, **changed: Any) -> Experiment:
        if "strategies" not in changed:
            changed["strategies"] = {"S": self.strategy()}
        return Experiment(**{"data": few_samples(), **self.fields, **changed})

    def scenario(self, threads: int = 1, **changed: Any) -> Scenario:
        experiment = self.experiment(**changed)
        return draw_scenario(experiment, load_data(experiment), self.seed, threads)


def few_samples() -> efhc.Dataset:
    """Three classes of four features: a linear model has 15 parameters."""
    stream = np.random.default_rng(0)
    y = np.arange(96) % 3
    x = stream.normal(size=(3, 4))[y] + 0.5 * stream.normal(size=(96, 4))
    return efhc.Dataset(x[:72], y[:72], x[72:], y[72:])


# What may be combined


def shares(least: float = 0.0, most: float = 1.0) -> st.SearchStrategy[float]:
    return st.floats(least, most).map(lambda share: round(share, 3))


LOCAL = st.one_of(
    st.just({"kind": "sgd"}),
    st.builds(lambda mu: {"kind": "momentum", "momentum": mu}, shares(0.0, 0.95)),
    st.builds(
        lambda theta, mu: {"kind": "corrected", "correction": theta, "momentum": mu}, shares(0.01, 0.5), shares(0, 0.9)
    ),
)
RHOS = st.sampled_from(["own", "nominal", "mean"])
FIRING = st.one_of(
    st.builds(
        lambda r, rho, every: {"kind": "norm", "r": r, "rho": rho, "every": every},
        shares(0.0, 2000.0),
        RHOS,
        st.sampled_from([1, 1, 2]),
    ),
    st.builds(lambda every: {"kind": "period", "every": every}, st.integers(1, 4)),
    st.builds(lambda p: {"kind": "coin", "probability": p}, shares()),
    st.just({"kind": "always"}),
    st.just({"kind": "never"}),
)
ENTRYWISE = st.builds(lambda r, rho: {"kind": "entrywise", "r": r, "rho": rho}, shares(0.0, 4000.0), RHOS)
CODECS = st.one_of(
    st.just({"kind": "full"}),
    st.builds(lambda bits: {"kind": "levels", "bits": bits}, st.integers(1, 8)),
    st.just({"kind": "sign"}),
    st.builds(lambda share: {"kind": "top-k", "share": share}, shares(0.01, 1.0)),
)
BUDGETS = st.none() | st.builds(lambda share: {"share": share}, shares(0.05, 1.0))


@st.composite
def cases(draw: st.DrawFn, *, lossy: bool | None = None, mixings: tuple[str, ...] = MIXINGS) -> Case:
    """Any combination with a meaning. `lossy` says whether messages are lost; None: either."""
    network = draw(st.sampled_from(sorted(NETWORKS)))
    mixing = draw(st.sampled_from(("exchange",) if lossy else mixings))
    parts: dict[str, Table] = {"local": draw(LOCAL)}
    if mixing == "exchange":
        parts |= {"mixing": {"kind": "exchange"}, "trigger": draw(FIRING)}
    else:
        parts["mixing"] = {"kind": mixing, "rate": draw(shares(0.05, 1.0))}
        if mixing == "half-steps":
            parts["mixing"] |= {"guard": "degree"} if parts["mixing"]["rate"] > 0.5 else {}
        else:
            when, every = draw(st.sampled_from(["always", "sent"])), draw(st.sampled_from([1, 1, 3]))
            parts["mixing"] |= {"when": when, "every": every}
        parts |= {"trigger": draw(FIRING | ENTRYWISE), "codec": draw(CODECS)}
    parts["links"] = draw(links(network, mixing))
    if budget := draw(BUDGETS):
        parts["budget"] = budget
    loss = 0.0
    if lossy or (lossy is None and mixing == "exchange"):
        loss = draw(st.sampled_from([0.3, 0.8] if lossy else [0.0, 0.3]))
    fields: dict[str, Any] = {
        "devices": draw(st.integers(4, 8)),
        "network": NETWORKS[network],
        "model": {"kind": "softmax"},
        "partition": {"kind": "iid"},
        "batch_size": 4,
        "precision": "float64",
        "exchange_at_start": draw(st.booleans()),
        "initial_models": {"kind": draw(st.sampled_from(["shared", "per-device"]))},
        "iterations": 8,
        "evaluate_every": 3,
    }
    if loss:
        fields["driver"] = {"kind": "lockstep", "loss": loss}
    return Case(parts, fields, draw(st.integers(0, 1000)))


def links(network: str, mixing: str) -> st.SearchStrategy[Table]:
    """All neighbours know the same estimate, so links that are drawn anew every time need another mixing."""
    some = [st.just({"kind": "all"})]
    if network == "static":
        some.append(st.just({"kind": "tree"}))
    if mixing != "estimates":
        some.append(st.builds(lambda p: {"kind": "sampled", "probability": p}, shares(0.2, 1.0)))
        if network == "static":
            some.append(st.builds(lambda share: {"kind": "matcha", "budget": share}, shares(0.2, 1.0)))
    return st.one_of(some)


# The plain law on a scenario


class Witnessed:
    """A choice of links that keeps what it was asked and what it answered."""

    def __init__(self, links: Any) -> None:
        self._links, self.is_fixed = links, links.is_fixed
        self.active: set[plain.Pair] | None = None
        self.weights: dict[plain.Pair, float] | None = None
        self.lost: set[plain.Pair] = set()

    def choose(self, now: Any) -> Any:
        chosen = self._links.choose(now)
        pairs = [(i, j) for i, j in now.graph.links.tolist()]
        self.active = {pair for pair, is_active in zip(pairs, chosen.active, strict=True) if is_active}
        self.weights = None if chosen.weights is None else dict(zip(pairs, chosen.weights.tolist(), strict=True))
        directed = zip(now.graph.directed.sender.tolist(), now.graph.directed.receiver.tolist(), strict=True)
        self.lost = set() if now.lost is None else {pair for pair, lost in zip(directed, now.lost, strict=True) if lost}
        return chosen


def plain_strategy(parts: dict[str, Table], width: int) -> plain.Strategy:
    local, mixing = parts["local"], parts["mixing"]
    codec = parts.get("codec", {"kind": "full"})
    estimates = {name: mixing[name] for name in ("rate", "when", "every") if name in mixing}
    return plain.Strategy(
        mixing=mixing["kind"],
        momentum=local.get("momentum", 0.0),
        correction=local.get("correction", 0.0),
        codec=(codec["kind"], codec.get("bits", codec.get("share", 0))),
        budget=parts["budget"]["share"] if parts.get("budget") else None,
        width=width,
        links_vary=parts.get("links", {}).get("kind") in ("sampled", "matcha"),
        **estimates,
    )


def triggered(trigger: Table, scenario: Scenario, k: int) -> dict[str, Any]:
    """What the plain law is given of a trigger at iteration k."""
    b, nominal, gamma = scenario.bandwidths.values.tolist(), scenario.bandwidths.nominal, scenario.threshold_decay(k)
    everyone = range(len(b))
    mean = sum(1 / each for each in b) / len(b)
    rho = {"own": [1 / each for each in b], "nominal": [1 / nominal for _ in b], "mean": [mean for _ in b]}
    match trigger["kind"]:
        case "norm" if k % trigger.get("every", 1) == 0:
            return {"thresholds": [trigger["r"] * each * gamma for each in rho[trigger.get("rho", "own")]]}
        case "entrywise":
            return {"entry_thresholds": [trigger["r"] * each * gamma for each in rho[trigger.get("rho", "nominal")]]}
        case "period":
            return {"fires": set(everyone) if k % trigger["every"] == 0 else set()}
        case "coin":
            coins = scenario.coins.reader()(k)
            return {"fires": {i for i in everyone if coins[i] < trigger["probability"]}}
        case "always":
            return {"fires": set(everyone)}
    return {"fires": set()}


class PlainRun:
    """The plain law, iteration by iteration, on the scenario that a driver is given."""

    def __init__(self, case: Case, scenario: Scenario) -> None:
        self._parts, self._scenario, self._reader = case.parts, scenario, scenario.reader()
        models = scenario.initial_models()
        self.strategy = plain_strategy(case.parts, width=8 * models.itemsize)
        self._precision = models.dtype
        self._local = scenario.learner.backend.initial_local(len(models))
        is_shared = bool((models == models[0]).all())
        neighbours = scenario.graphs(0)[1].neighbours()
        self.devices = plain.begin(self.strategy, models.tolist(), neighbours, is_shared=is_shared)
        self.k = 0
        self.active: set[plain.Pair] | None = None
        """The links of the latest iteration. None: all."""

    def step(
        self,
        active: set[plain.Pair] | None = None,
        weights: dict[plain.Pair, float] | None = None,
        lost: Collection[plain.Pair] = (),
    ) -> plain.Done:
        """Make one iteration over these links, with these losses of messages."""
        self.active = active
        before, now = self._scenario.graphs(self.k)
        models = np.array(self.devices.models, dtype=self._precision)
        gradients = np.empty_like(models)
        _, self._local = self._scenario.learner.backend.grads(
            models, self._reader.batch(self.k), self._local, gradients
        )
        given = plain.Given(
            k=self.k,
            alpha=self._scenario.step_size(self.k),
            neighbours=now.neighbours(),
            previous_neighbours=before.neighbours(),
            gradients=gradients.tolist(),
            active=active,
            weights=weights,
            lost=set(lost),
            **triggered(self._parts["trigger"], self._scenario, self.k),
        )
        self.devices, done = plain.iterate(self.strategy, self.devices, given)
        self.k += 1
        return done
