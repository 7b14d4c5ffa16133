"""From the records of nodes to the tables and models of an ordinary run, as `efhc run` leaves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.errors import EfhcError
from efhc.base.saving import read_tensors
from efhc.core.graph import Graph
from efhc.core.state import Local
from efhc.drivers.event_driven.record import EventRecord
from efhc.drivers.record import Record
from efhc.drivers.steps import Steps
from efhc.experiments.runs.keeping import RunKeeper
from efhc.experiments.runs.lockstep_run import LOCAL, snapshot_iterations
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.tables import devices_table
from efhc.kernels.compiled_arithmetic import consensus_error
from efhc.runtime.recording import read_exchanges, read_models, read_steps
from efhc.runtime.state.state_folder import read_checkpoint
from efhc.runtime.status import OUTCOMES
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import form_of


class Models(NamedTuple):
    """The models of all devices at one moment, and the arrays that they do not share, one row per device."""

    models: Floats
    local: Local


# Lockstep


def collect_lockstep(run: Run, scenario: Scenario, states: Sequence[Path], keeper: RunKeeper) -> None:
    """Assemble the tables and models of a run by nodes in lockstep, whose state folders are `states`.

    All that does not depend on time is bit for bit what `efhc run` computes. The consensus error is null after
    iterations whose models were not recorded. Raises `EfhcError` if something is missing.
    """
    experiment, learner = run.experiment, scenario.learner
    iterations, parameters = experiment.iterations, learner.backend.parameters
    fired, losses = _steps_of_all(states, iterations)
    (strategy,) = experiment.strategies.values()
    sent = None if form_of(strategy).half_steps is None else _Sent(states)
    recorded = _Recorded(states)
    final = _last_models(states, iterations)
    wanted = set(snapshot_iterations(run)) if experiment.keep_models_every else set()
    if 0 in wanted:
        keeper.snapshot(0, recorded.after(0).models)
    record = Record()
    for k in range(iterations):
        previous, graph = scenario.graphs(k)
        after = final if k + 1 == iterations else recorded.after(k + 1) if recorded.has(k + 1) else None
        error = np.nan if after is None else consensus_error(after.models)
        bits = None if sent is None else sent.bits(k, graph)[None]
        record.add(
            Steps(k, previous, graph, fired[k : k + 1], losses[k : k + 1], np.array([error]), bits),
            scenario.bandwidths.values,
            parameters,
        )
        if experiment.is_evaluated_after(k + 1):
            evaluated = after or recorded.after(k + 1)
            record.add_accuracies(*learner.accuracies(evaluated.models, evaluated.local))
        if k + 1 in wanted:
            keeper.snapshot(k + 1, (after or recorded.after(k + 1)).models)
        if record.is_large:
            keeper.put_away(record.take())
    keeper.put_away(record.take())
    keeper.finish(final.models, final.local, devices_table(scenario, run.seed))


def _steps_of_all(states: Sequence[Path], iterations: int) -> tuple[Flags, Floats]:
    """Return who fired and the losses, (iterations, devices)."""
    fired, losses = np.zeros((iterations, len(states)), dtype=bool), np.full((iterations, len(states)), np.nan)
    for device, state in enumerate(states):
        steps = read_steps(state)  # of iterations that were made again, the last row counts
        made = steps[steps["k"] < iterations]
        fired[made["k"], device], losses[made["k"], device] = made["fired"], made["loss"]
        if (missing := np.flatnonzero(np.isnan(losses[:, device]))).size:
            raise EfhcError(f"device {device} has recorded no iteration {missing[0]}; its files are in {state}")
    return fired, losses


class _Sent:
    """The bits that nodes with half-steps have sent to their neighbours, by iteration."""

    def __init__(self, states: Sequence[Path]) -> None:
        rows = [read_exchanges(state) for state in states]
        ends = np.concatenate([np.column_stack([np.full(len(of), i), of["neighbour"]]) for i, of in enumerate(rows)])
        k, sizes = _joined(rows, "device_k"), _joined(rows, "bytes")
        order = np.argsort(k, kind="stable")
        self._k, self._ends, self._bits = k[order], ends[order], 8 * sizes[order]

    def bits(self, k: int, graph: Graph) -> Ints:
        """Return the bits of iteration k over each directed link. Of an iteration that was made again, once."""
        here = slice(*np.searchsorted(self._k, [k, k + 1]))
        directed, found = graph.directed, np.zeros(2 * len(graph.links), np.int64)
        codes = directed.sender * graph.devices + directed.receiver
        found[np.searchsorted(codes, self._ends[here] @ [graph.devices, 1])] = self._bits[here]
        return found


class _Recorded:
    """The models that nodes recorded, by iteration. They are read from disk when needed."""

    def __init__(self, states: Sequence[Path]) -> None:
        self._states = states
        self._rows = [read_models(state) for state in states]
        self._places: list[Mapping[int, int]] = [
            {k: place for place, k in enumerate(rows["k"].tolist())} for rows in self._rows
        ]

    def has(self, k: int) -> bool:
        """Return whether all devices have recorded w_i(k)."""
        return all(k in places for places in self._places)

    def after(self, k: int) -> Models:
        """Return the models after k iterations."""
        for state, places in zip(self._states, self._places, strict=True):
            if k not in places:
                raise EfhcError(f"a model of iteration {k} is missing in {state}")
        return _stacked([rows[places[k]] for rows, places in zip(self._rows, self._places, strict=True)])


def _stacked(rows: Sequence[np.void]) -> Models:
    names = [name for name in rows[0].dtype.names or () if name.startswith(LOCAL)]
    local = {name.removeprefix(LOCAL): np.stack([row[name] for row in rows]) for name in names}
    return Models(np.stack([row["model"] for row in rows]), local)


def _last_models(states: Sequence[Path], iterations: int) -> Models:
    found = []
    for state in states:
        try:
            found.append(read_tensors(state / f"checkpoint-{iterations}.safetensors")[0])
        except (OSError, ValueError) as error:
            raise EfhcError(f"{state} has no checkpoint of iteration {iterations} ({error})") from None
    return _of_checkpoints(found, [tensors["model"] for tensors in found])


def _of_checkpoints(found: Sequence[Mapping[str, np.ndarray]], models: Sequence[np.ndarray]) -> Models:
    names = [name for name in found[0] if name.startswith(LOCAL)]
    local = {name.removeprefix(LOCAL): np.concatenate([tensors[name] for tensors in found]) for name in names}
    return Models(np.stack(models), local)


# Free-running


def collect_free_running(
    run: Run, scenario: Scenario, states: Sequence[Path], keeper: RunKeeper, sample_seconds: float, end: float
) -> None:
    """Assemble the tables of an event-driven run by nodes that ran on their own clocks until second `end`.

    A sample has the models that nodes recorded at its time; the accuracy is measured here. The imbalance is null: only
    the nodes together would know it. Raises `EfhcError` if a node recorded nothing.
    """
    record, learner = EventRecord(), scenario.learner
    steps = [rows[rows["seconds"] <= end] for rows in map(read_steps, states)]
    begun = [read_exchanges(state) for state in states]
    exchanges = [rows[rows["end"] <= end] for rows in begun]
    for device, rows in enumerate(steps):
        record.steps += [(device, *row) for row in rows[["k", "seconds", "fired", "loss"]].tolist()]
    record.steps.sort(key=lambda row: row[2])
    for device, rows in enumerate(exchanges):
        record.exchanges += [_exchange_row(device, row) for row in rows]
    record.exchanges.sort(key=lambda row: row[1])
    graph = scenario.network.graph(0)
    record.network.append((0, *graph.links.T.tolist()))
    recorded = [read_models(state) for state in states]
    step_times, fired = _joined(steps, "seconds"), _joined(steps, "fired")
    ends, outcomes = _joined(exchanges, "end"), _joined(exchanges, "outcome")
    # As in a simulation, models count when their sending begins, which is soon after the offer.
    starts, sizes = _joined(begun, "start"), _joined(begun, "bytes")
    committed = outcomes == OUTCOMES.index("committed")
    for seconds in (sample_seconds * place for place in range(int(end / sample_seconds + 1e-9) + 1)):
        models = _models_at(recorded, seconds, sample_seconds)
        accuracies, of_mean = learner.accuracies(*models)
        made, over = step_times <= seconds, ends <= seconds
        counts = made.sum(), (made & fired).sum(), (over & committed).sum(), sizes[starts <= seconds].sum(), len(states)
        quality = accuracies.mean(), accuracies.min(), accuracies.max(), of_mean, consensus_error(models.models)
        record.timeline.append((seconds, *map(int, counts), *map(float, quality), None))
    keeper.put_away(record.take())
    final = _final_models(states)
    keeper.finish(final.models, final.local, devices_table(scenario, run.seed))


def _joined(tables: Sequence[np.ndarray], column: str) -> np.ndarray:
    return np.concatenate([table[column] for table in tables])


def _exchange_row(device: int, row: np.void) -> tuple[object, ...]:
    values = {name: row[name].item() for name in row.dtype.names or ()}
    norm = values["norm"]
    return (
        values["start"], values["end"], device, values["neighbour"], values["device_k"], values["neighbour_k"],
        values["beta"], values["event"] or None, OUTCOMES[values["outcome"]], values["bytes"],
        None if np.isnan(norm) else norm,
    )  # fmt: skip


def _models_at(recorded: Sequence[np.ndarray], seconds: float, every: float) -> Models:
    """Return the model of each device that was recorded for this sample, or the last one before it."""
    chosen = []
    for device, rows in enumerate(recorded):
        places: Ints = np.flatnonzero(rows["seconds"] < seconds + every)
        if not len(rows):
            raise EfhcError(f"device {device} has recorded no model")
        chosen.append(rows[places[-1] if len(places) else 0])
    return _stacked(chosen)


def _final_models(states: Sequence[Path]) -> Models:
    models, found = [], []
    for state in states:
        try:
            tensors, facts = read_checkpoint(state / "checkpoint.safetensors")
            names = {number: name for name, number in facts["arrays"].items()}
            models.append(tensors[names[facts["device"]["model"]]])
        except (OSError, ValueError, KeyError) as error:
            raise EfhcError(f"{state} has no checkpoint that can be used ({error})") from None
        found.append(tensors)
    return _of_checkpoints(found, models)
