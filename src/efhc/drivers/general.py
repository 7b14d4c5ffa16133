"""All devices step together, by any strategy: a table of parts (`core.law`), or one that makes its iterations itself.

The paper's strategies, in which nothing but thresholds differ, have a faster driver, `drivers.lockstep`; `driver_for`
chooses. A trigger that looks at what devices see is called when the iteration is made, and never in advance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints, read_only
from efhc.base.errors import InputError
from efhc.base.own_code import is_built_in, quoting
from efhc.core.arithmetic import CheckedCodec, finite_rows
from efhc.core.cost import device_times
from efhc.core.graph import Graph
from efhc.core.law import Happened, TriggerDecision, iterate_parts, take_back
from efhc.core.memory import Arrays, Memories, begin, carry_over
from efhc.core.parts import ExchangeMixing, FeedbackTrigger, Now, Parts, Seen
from efhc.core.randomness import Purpose
from efhc.core.state import Diverged, State
from efhc.drivers.lockstep import PaperLockstep, refuse_used_up
from efhc.drivers.result_checks import CheckedLinks, ResultChecks
from efhc.drivers.steps import Steps
from efhc.kernels.compiled_arithmetic import CompiledLaw
from efhc.network.topologies import StaticGraph
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import OWN, Form, form_of

AT_ONCE = 256
"""Iterations that one call makes at most, so that there is something to see."""
RECORDED = 1 << 22
"""The largest number of numbers that one call records, if that is more than one iteration."""


def driver_for(
    scenario: Scenario, strategy: Any, threads: int = 1, loss: float = 0.0
) -> PaperLockstep | GeneralLockstep:
    """Return the driver of a strategy. `loss` is the probability with which a message gets lost."""
    form = form_of(strategy)
    if form.is_papers and not loss:
        return PaperLockstep(scenario, strategy, threads)
    return GeneralLockstep(scenario, strategy, threads, loss)


class GeneralLockstep:
    """Moves the state of any strategy on.

    It takes over the arrays of the first state that it is given, and every state that it returns is a view of its own
    arrays, good until the next call of `advance`: copy what you keep of it.
    """

    def __init__(self, scenario: Scenario, strategy: Any, threads: int = 1, loss: float = 0.0) -> None:
        self._scenario, self._form, self._loss = scenario, form_of(strategy), loss
        self._reader, self._backend = scenario.reader(), scenario.learner.backend
        self._coins = scenario.coins.reader()
        self._arithmetic = CompiledLaw(threads)
        self._latest: State | None = None
        self._raised: BaseException | None = None
        """What the iteration after the latest state has raised, if it is not known outside yet."""
        self._spare: Floats = np.empty((0, 0))
        self._graph_shown: tuple[Graph, Graph] | None = None
        """The graph that was last shown to a strategy of the user's own, and the copy that it was shown."""
        self._checks = ResultChecks(strategy)
        self._parts = _with_checks(self._form.parts)
        self._trigger: Any = self._parts.trigger if self._parts else None
        self._feedback = self._trigger if isinstance(self._trigger, FeedbackTrigger) else None
        self._is_entrywise = bool(getattr(self._trigger, "is_entrywise", False))
        self._own_memories = self._form.own_memory
        self._is_static = isinstance(scenario.network, StaticGraph)
        self.memories: Memories = self._form.memory(is_static=self._is_static)
        """What the strategy remembers."""
        self._links_remembered = any(memory.per == "link" for memory in self.memories.values())
        self._may_meet_at_start = self._parts is None or not isinstance(self._parts.mixing, ExchangeMixing)

    def initial_state(self) -> State:
        """The state at k = 0, in arrays of its own."""
        scenario, models = self._scenario, self._scenario.initial_models()
        memory = begin(self.memories, scenario.network.graph(0), models)
        if "elapsed" in memory:  # links that come later count from their first use
            memory["elapsed"][...] = 0.0
        known = models.copy() if self._form.broadcasts(is_static=self._is_static) else models[:0].copy()
        return State(0, models, known, self._backend.initial_local(len(models)), memory)

    def advance(self, state: State, most: int = 1) -> tuple[State, Steps]:
        """Make at least one and at most `most` iterations; returns the new state, and what the iterations did.

        The given state is used up. If training diverges, `Diverged` is raised, and the state is as it was.
        """
        error, self._raised = self._raised, None
        if error is not None and self._is_latest(state):
            raise error
        state = self._owned(state)
        k, (previous, graph) = state.k, self._scenario.graphs(state.k)
        most = self._count(k, graph, most)
        fired: list[Flags] = []
        losses: list[Floats] = []
        errors: list[float] = []
        bits: list[Ints] = []
        while len(fired) < most:
            try:
                state, happened, of_devices = self._iteration(state)
            except BaseException as error:
                if not fired:
                    raise
                self._raised = error  # the caller must see the complete iterations before it first
                break
            fired.append(happened.fired)
            losses.append(of_devices)
            errors.append(happened.consensus_error)
            bits.append(happened.bits)
        self._latest = state
        steps = Steps(k, previous, graph, np.stack(fired), np.stack(losses), np.array(errors), np.stack(bits))
        return state, steps

    def _count(self, k: int, graph: Graph, most: int) -> int:
        """Return how many iterations to make at once: all on one graph, and few enough to record."""
        most = min(most, AT_ONCE, max(1, RECORDED // (2 * len(graph.links) + 2 * graph.devices)))
        return self._scenario.iterations_on_graph(k, most)

    def _is_latest(self, state: State) -> bool:
        return self._latest is not None and self._latest.k == state.k and self._latest.models is state.models

    def _owned(self, state: State) -> State:
        """The state, in arrays that belong to this object."""
        if self._is_latest(state):
            return state
        if self._latest is not None:
            refuse_used_up(state, (self._latest.models, self._latest.last_broadcast, self._spare))
        models, known = (np.require(one, requirements=["C", "W"]) for one in (state.models, state.last_broadcast))
        self._spare = np.empty_like(models)
        return State(state.k, models, known, state.local, state.memory)

    def _iteration(self, state: State) -> tuple[State, Happened, Floats]:
        scenario, k = self._scenario, state.k
        previous, graph = scenario.graphs(k)
        if k > 0 and self._form.needs_static and not graph.has_links_of(previous):
            raise changing_graph(self._form, k)
        steps = self._parts.local.steps if self._parts else 1
        losses, local = self._backend.grads(state.models, self._reader.batch(k * steps), state.local, self._spare)
        if not (finite := np.isfinite(losses)).all():
            raise Diverged(k, "loss", finite)
        memory = state.memory
        if k > 0 and self._links_remembered:
            if "link_correction" in memory and not graph.has_links_of(previous):
                h = take_back(memory["correction"], memory["link_correction"], previous, graph)
                memory = {**memory, "correction": h}
            memory = carry_over(self.memories, memory, previous, graph, state.models)
        now = self._now(state, previous, graph, losses, memory["spent"])
        before, own = State(k, state.models, state.last_broadcast, local, memory), self._own(memory)
        if self._parts is None:
            after, happened = self._whole(before, now, own)
        else:

            def gradients(step: int, models: Floats) -> Floats:
                nonlocal local
                if step > 0:
                    found, local = self._backend.grads(models, self._reader.batch(k * steps + step), local, self._spare)
                    if not (finite := np.isfinite(found)).all():
                        raise Diverged(k, "loss", finite)
                return self._spare

            decision = self._decision(now, own)
            after, happened = iterate_parts(self._parts, before, now, gradients, decision, self._arithmetic)
            after = after._replace(memory={**after.memory, **self._remembered(own, memory, k)})
        spent = memory["spent"] + device_times(graph, happened.bits, scenario.bandwidths.values)
        self._reuse_arrays(state, after)
        kept = {**after.memory, "spent": spent}
        return State(k + 1, after.models, after.last_broadcast, local, kept), happened, losses

    def _now(self, state: State, previous: Graph, graph: Graph, losses: Floats, spent: Floats) -> Now:
        scenario, k = self._scenario, state.k
        alpha = float(scenario.step_size(k))
        if not 0 < alpha < np.inf:
            raise InputError(
                "step_size", f"{alpha} at k = {k}", f"a positive number, which {self._checks.name} divides by"
            )
        new_links = met = graph.new_since(previous)
        if k == 0 and self._may_meet_at_start and not _all_equal(state.models):
            new_links = np.ones(len(graph.links), dtype=bool)  # neighbours cannot know what they were never sent
        randomness, lost = scenario.coins.randomness, None
        if self._loss:
            lost = randomness.stream(Purpose.MESSAGE_LOSS, k).random(2 * len(graph.links)) < self._loss
        return Now(
            k,
            alpha,
            float(scenario.threshold_decay(k)),
            graph,
            new_links,
            scenario.bandwidths,
            read_only(losses),
            read_only(spent),
            self._coins,
            lambda *where: randomness.stream(Purpose.STRATEGY, k, *where),
            lost,
            met,
        )

    def _shown(self, now: Now) -> Now:
        """What an iteration shows to a strategy of the user's own: a graph that no other strategy uses."""
        if is_built_in(self._form.strategy):
            return now
        if self._graph_shown is None or self._graph_shown[0] is not now.graph:
            own = now.graph.own_weights
            shown = Graph(now.graph.devices, read_only(now.graph.links), None if own is None else read_only(own))
            self._graph_shown = now.graph, shown
        return replace(now, graph=self._graph_shown[1])

    def _own(self, memory: Arrays) -> dict[str, np.ndarray]:
        """Return copies of what the strategy remembers of its own, for it to write to."""
        return {name: memory[OWN + name].copy() for name in self._own_memories}

    def _remembered(self, own: dict[str, np.ndarray], before: Arrays, k: int) -> Arrays:
        """Return what the strategy of the user's own remembers after iteration k, checked."""
        if not own and not self._own_memories:
            return {}
        expected = {name: before[OWN + name] for name in self._own_memories}
        checked = self._checks.memory(own, expected, self._own_memories, k)
        return {OWN + name: array for name, array in checked.items()}

    def _decision(self, now: Now, own: dict[str, np.ndarray]) -> TriggerDecision:
        """Return the thresholds of the trigger, or how it decides once drifts are known."""
        trigger = self._feedback
        if trigger is None:
            return TriggerDecision(self._reader.thresholds(self._trigger, now.k), None, self._is_entrywise)

        def fires(drift: Floats) -> Flags:
            degrees = read_only(now.graph.degrees)
            seen = Seen(now.k, now.threshold_decay, drift, now.losses, now.spent, degrees, now.bandwidths, now.coins)
            with quoting(trigger, self._checks.name):
                return self._checks.flags(trigger.fires(seen, own), "from fires", len(drift), now.k)

        return TriggerDecision(None, fires)

    def _whole(self, state: State, now: Now, own: dict[str, np.ndarray]) -> tuple[State, Happened]:
        """One iteration of a strategy that makes it itself."""
        strategy, graph, k = self._form.strategy, now.graph, now.k
        with quoting(strategy, self._checks.name), np.errstate(over="ignore", invalid="ignore"):
            given = strategy.step(self._shown(now), read_only(state.models), read_only(self._spare), own)
            moved = self._checks.moved(given, state.models, k)
            bits = self._checks.bits(moved, graph, k)
            sends = np.bincount(graph.directed.sender, bits, graph.devices) > 0
            fired = sends if moved.fired is None else self._checks.flags(moved.fired, "fired that is", graph.devices, k)
            remembered = self._remembered(own, state.memory, k)  # it may be a view of the gradients, overwritten below
        self._spare[...] = moved.models
        error = self._arithmetic.consensus_error(self._spare)
        if not np.isfinite(error):
            raise Diverged(k, "model", finite_rows(self._spare))
        after = State(k + 1, self._spare, state.last_broadcast, state.local, {**state.memory, **remembered})
        return after, Happened(fired, bits, error)

    def _reuse_arrays(self, before: State, after: State) -> None:
        """Let the next iteration write to the arrays that this one has read."""
        self._spare = before.models
        if after.last_broadcast is not before.last_broadcast:
            self._arithmetic.reuse("known", before.last_broadcast)
        for memory, role in (("momentum", "momentum after"), ("correction", "correction"), ("known", "known")):
            old, new = before.memory.get(memory), after.memory.get(memory)
            if old is not None and new is not None and old is not new:
                self._arithmetic.reuse(role, old)


def _with_checks(parts: Parts | None) -> Parts | None:
    """Return the parts, those of the user's own checked."""
    if parts is None:
        return None
    codec = parts.codec if parts.codec is None or is_built_in(parts.codec) else CheckedCodec(parts.codec)
    links = parts.links if parts.links is None or is_built_in(parts.links) else CheckedLinks(parts.links)
    return replace(parts, codec=codec, links=links)


def changing_graph(form: Form, k: int, name: str = "") -> InputError:
    """Return the error for a strategy that needs a graph that stays as it is; `name` is its name."""
    kind = getattr(form.strategy, "kind", type(form.strategy).__name__)
    field, given = f"strategies.{name}" if name else f"strategy {kind}", f"a network that changes at k = {k}"
    if form.parts is None:
        return InputError(field, f"'{kind}' on {given}", "a network that stays as it is, or another strategy")
    if form.keeps_no_history:
        return InputError(f"{field}.mixing.take_back", f"false on {given}", "true, or a network that stays as it is")
    return InputError(f"{field}.links", f"'tree' on {given}", "a network that stays as it is, or links = 'all'")


def _all_equal(models: Floats) -> bool:
    return bool((models == models[0]).all())
