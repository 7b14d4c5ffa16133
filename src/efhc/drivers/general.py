"""All devices step together, by any strategy: a table of parts (`core.law`), or one that makes its iterations itself.

The paper's strategies, in which nothing but thresholds differ, have a faster driver, `drivers.lockstep`; `driver_for`
chooses. A trigger that looks at what devices see is asked when the iteration is made, and never in advance.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints, read_only
from efhc.base.errors import InputError
from efhc.base.own_code import is_built_in, quoting
from efhc.core.cost import device_times
from efhc.core.graph import Graph
from efhc.core.iteration import finite_rows
from efhc.core.law import Happened, iterate_parts
from efhc.core.memory import Memories, begin, carry_over
from efhc.core.parts import FeedbackTrigger
from efhc.core.randomness import Purpose
from efhc.core.state import Diverged, State
from efhc.core.telling import Asked
from efhc.core.views import Moved, Now, Seen
from efhc.drivers.lockstep import Lockstep
from efhc.drivers.steps import Steps
from efhc.kernels.compiled_law import CompiledLaw
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import OWN, Form, form_of

AT_ONCE = 256
"""Iterations that one call makes at most, so that there is something to see."""
RECORDED = 1 << 22
"""Numbers that one call tells of at most, if that is more than one iteration."""


def driver_for(scenario: Scenario, strategy: Any, threads: int = 1, loss: float = 0.0) -> Lockstep | GeneralLockstep:
    """Return the driver of a strategy. `loss` is the probability with which a message gets lost."""
    form = form_of(strategy)
    if form.is_papers and not loss:
        return Lockstep(scenario, strategy, threads)
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
        self._name = f"strategy {getattr(strategy, 'kind', type(strategy).__name__)}"
        trigger = self._form.parts.trigger if self._form.parts else None
        self._feedback = trigger if isinstance(trigger, FeedbackTrigger) else None
        self._is_entrywise = bool(getattr(trigger, "is_entrywise", False))
        self._own_names = [name.removeprefix(OWN) for name in self._form.memory if name.startswith(OWN)]
        """What the strategy remembers of its own."""
        self._links_remembered = any(memory.per == "link" for memory in self._form.memory.values())
        self._may_meet_at_start = self._form.parts is None or self._form.estimates is not None

    def initial_state(self) -> State:
        """The state at k = 0."""
        return initial_state(self._scenario, self._form, self._loss)

    def advance(self, state: State, most: int = 1) -> tuple[State, Steps]:
        """Make at least one and at most `most` iterations; returns the new state, and what the iterations did.

        The given state is used up. If training diverges, `Diverged` is raised, and the state is as it was.
        """
        if (error := self._raised) is not None:
            self._raised = None
            raise error
        state = self._owned(state)
        k, (previous, graph) = state.k, self._scenario.graphs(state.k)
        entries = 2 * len(graph.links) + 2 * graph.devices
        most = min(most, AT_ONCE, max(1, RECORDED // entries))
        fired: list[Flags] = []
        losses: list[Floats] = []
        errors: list[float] = []
        bits: list[Ints] = []
        while len(fired) < most and (not fired or self._scenario.network.graph(state.k) is graph):
            try:
                state, happened, of_devices = self._iteration(state)
            except BaseException as error:
                if not fired:
                    raise
                self._raised = error  # the iterations before it are whole, and somebody must see them first
                break
            fired.append(happened.fired)
            losses.append(of_devices)
            errors.append(happened.consensus_error)
            bits.append(happened.bits)
        self._latest = state
        steps = Steps(k, previous, graph, np.stack(fired), np.stack(losses), np.array(errors), np.stack(bits))
        return state, steps

    def _owned(self, state: State) -> State:
        latest = self._latest
        if latest is not None and latest.k == state.k and latest.models is state.models:
            return state
        models, known = (np.require(one, requirements=["C", "W"]) for one in (state.models, state.last_broadcast))
        self._spare = np.empty_like(models)
        return State(state.k, models, known, state.local, state.memory)

    def _iteration(self, state: State) -> tuple[State, Happened, Floats]:
        scenario, k = self._scenario, state.k
        previous, graph = scenario.graphs(k)
        if k > 0 and self._form.needs_static and not _same_links(previous, graph):
            raise changing_graph(self._form, k)
        losses, local = self._backend.grads(state.models, self._reader.batch(k), state.local, self._spare)
        if not (finite := np.isfinite(losses)).all():
            raise Diverged(k, "loss", finite)
        memory = state.memory or begin(self._form.memory, graph, state.models)
        if k > 0 and self._links_remembered:
            memory = carry_over(self._form.memory, memory, previous, graph, state.models)
        now = self._now(state, previous, graph, losses, memory["spent"])
        before, own = State(k, state.models, state.last_broadcast, local, memory), self._own(memory)
        if self._form.parts is None:
            after, happened = self._whole(before, now, own)
        else:
            asked = self._asked(now, own)
            after, happened = iterate_parts(self._form.parts, before, now, self._spare, asked, self._arithmetic)
        spent = memory["spent"] + device_times(graph, happened.bits, scenario.bandwidths.values)
        kept = {**after.memory, "spent": spent}
        if own or self._own_names:
            self._check_memory(own, memory, k)
            kept |= {OWN + name: array for name, array in own.items()}
        self._hand_back(state, after)
        return State(k + 1, after.models, after.last_broadcast, local, kept), happened, losses

    def _now(self, state: State, previous: Graph, graph: Graph, losses: Floats, spent: Floats) -> Now:
        scenario, k = self._scenario, state.k
        alpha = float(scenario.step_size(k))
        if not 0 < alpha < np.inf:
            raise InputError("step_size", f"{alpha} at k = {k}", f"a positive number, which {self._name} divides by")
        new_links = graph.new_since(previous)
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
            losses,
            spent,
            self._coins,
            lambda *where: randomness.stream(Purpose.STRATEGY, k, *where),
            lost,
        )

    def _own(self, memory: Any) -> dict[str, np.ndarray]:
        """Return copies of what the strategy remembers of its own, for it to write to."""
        return {name: memory[OWN + name].copy() for name in self._own_names}

    def _asked(self, now: Now, own: dict[str, np.ndarray]) -> Asked:
        assert self._form.parts is not None
        trigger = self._feedback
        if trigger is None:
            thresholds = self._reader.thresholds(self._form.parts.trigger, now.k)
            return Asked(thresholds, None, self._is_entrywise)

        def fires(drift: Floats) -> Flags:
            degrees = now.graph.degrees
            seen = Seen(now.k, now.threshold_decay, drift, now.losses, now.spent, degrees, now.bandwidths, now.coins)
            with quoting(trigger, self._name):
                given = np.asarray(trigger.fires(seen, own))
            if given.shape != (len(drift),) or given.dtype != bool:
                what = f"{given.dtype} of shape {given.shape} from fires at k = {now.k}"
                raise InputError(self._name, what, f"bool of shape ({len(drift)},), one per device")
            return given

        return Asked(None, fires)

    def _whole(self, state: State, now: Now, own: dict[str, np.ndarray]) -> tuple[State, Happened]:
        """One iteration of a strategy that makes it itself."""
        strategy, graph, shape = self._form.strategy, now.graph, state.models.shape
        with quoting(strategy, self._name), np.errstate(over="ignore", invalid="ignore"):
            moved = strategy.step(now, read_only(state.models), read_only(self._spare), own)
        if not isinstance(moved, Moved):
            raise InputError(self._name, f"a {type(moved).__name__} from step at k = {now.k}", "an efhc.Moved")
        models, bits = np.asarray(moved.models), np.asarray(moved.bits)
        if models.shape != shape or models.dtype.kind != "f":
            what = f"models that are {models.dtype} of shape {models.shape} at k = {now.k}"
            raise InputError(self._name, what, f"{state.models.dtype} of shape {shape}")
        if not (finite := finite_rows(models)).all():
            if is_built_in(strategy) or not np.isnan(models).any():
                raise Diverged(now.k, "model", finite)
            device = int(np.flatnonzero(np.isnan(models).any(axis=1))[0])
            raise InputError(self._name, f"NaN in the model of device {device} at k = {now.k}", "finite numbers")
        bits = self._directed_bits(bits, moved.per, graph, now.k)
        fired = np.bincount(graph.directed.sender, bits, graph.devices) > 0 if moved.fired is None else moved.fired
        fired = np.asarray(fired)
        if fired.shape != (graph.devices,) or fired.dtype != bool:
            what = f"fired that is {fired.dtype} of shape {fired.shape} at k = {now.k}"
            raise InputError(self._name, what, f"bool of shape ({graph.devices},), one per device")
        self._spare[...] = models
        error = self._arithmetic.consensus_error(self._spare)
        if not np.isfinite(error):
            raise Diverged(now.k, "model", finite_rows(self._spare))
        return State(now.k + 1, self._spare, state.last_broadcast, state.local, state.memory), Happened(
            fired, bits, error
        )

    def _directed_bits(self, bits: Any, per: str, graph: Graph, k: int) -> Ints:
        """Return the bits that a whole strategy says it sent, per directed link."""
        sender = graph.directed.sender
        count = {"device": graph.devices, "link": len(sender)}.get(per)
        if bits.dtype.kind not in "iuf" or bits.shape != (count,):
            what = f"bits that are {bits.dtype} of shape {bits.shape} with per = {per!r} at k = {k}"
            allowed = f"numbers of shape ({graph.devices},) with per = 'device', or ({len(sender)},) with per = 'link'"
            raise InputError(self._name, what, allowed)
        if not ((bits >= 0) & (bits < np.inf)).all():
            raise InputError(self._name, f"bits from {bits.min()} to {bits.max()} at k = {k}", "finite numbers from 0")
        per_link: Ints = np.ceil(bits if per == "link" else bits[sender]).astype(np.int64)
        return per_link

    def _check_memory(self, own: dict[str, np.ndarray], memory: Any, k: int) -> None:
        """Compiled loops and checkpoints count on shapes and types: a strategy may not change them."""
        expected = {name: memory[OWN + name] for name in self._own_names}
        if own.keys() != expected.keys():
            given = f"memory named {', '.join(sorted(own)) or '(nothing)'} at k = {k}"
            raise InputError(self._name, given, f"memory named {', '.join(sorted(expected)) or '(nothing)'}")
        for name, given_array in own.items():
            array = own[name] = np.asarray(given_array)
            if array.shape != expected[name].shape or array.dtype != expected[name].dtype:
                given = f"memory {name} that is {array.dtype} of shape {array.shape} at k = {k}"
                raise InputError(self._name, given, f"{expected[name].dtype} of shape {expected[name].shape}")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                where = self._where_not_finite(name, array)
                raise InputError(self._name, f"NaN or infinity in memory {name}{where} at k = {k}", "finite numbers")

    def _where_not_finite(self, name: str, array: np.ndarray) -> str:
        per = self._form.memory[OWN + name].per
        if not array.ndim or per == "run":
            return ""
        rows = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))
        return f" of {per} {int(rows[0])}"

    def _hand_back(self, before: State, after: State) -> None:
        """Let the next iteration write to the arrays that this one has read."""
        self._spare = before.models
        if after.last_broadcast is not before.last_broadcast:
            self._arithmetic.reuse("known", before.last_broadcast)
        for role in ("momentum", "correction", "estimates"):
            old, new = before.memory.get(role), after.memory.get(role)
            if old is not None and new is not None and old is not new:
                self._arithmetic.reuse(role, old)


def remembered(form: Form, loss: float = 0.0) -> Memories:
    """Return what the driver of a strategy of this form remembers: of the paper's strategies nothing."""
    return {} if form.is_papers and not loss else form.memory


def initial_state(scenario: Scenario, form: Form, loss: float = 0.0) -> State:
    """Return the state at k = 0 of a strategy of this form, in arrays of its own."""
    models, graph = scenario.initial_models(), scenario.network.graph(0)
    memory = begin(remembered(form, loss), graph, models)
    if "met" in memory:  # one shared start is known to all neighbours
        memory["met"][...] = _all_equal(models) and not scenario.exchange_at_start
    known = models.copy() if form.broadcasts else models[:0].copy()
    return State(0, models, known, scenario.learner.backend.initial_local(len(models)), memory)


def changing_graph(form: Form, k: int, name: str = "") -> InputError:
    """Return the error for a strategy that needs a graph that stays as it is; `name` is its name."""
    kind = getattr(form.strategy, "kind", type(form.strategy).__name__)
    field, given = f"strategies.{name}" if name else f"strategy {kind}", f"a network that changes at k = {k}"
    if form.parts is None:
        return InputError(field, f"'{kind}' on {given}", "a network that stays as it is, or another strategy")
    return InputError(f"{field}.links", f"'tree' on {given}", "a network that stays as it is, or links = 'all'")


def _same_links(before: Graph, now: Graph) -> bool:
    return before is now or np.array_equal(before.links, now.links)


def _all_equal(models: Floats) -> bool:
    return bool((models == models[0]).all())
