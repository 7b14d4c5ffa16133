"""From the records of nodes to the tables and models of an ordinary run, as `efhc run` leaves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import EfhcError
from efhc.base.saving import read_tensors
from efhc.core.graph import Graph
from efhc.core.state import Local
from efhc.drivers.event_driven.record import EventRecord
from efhc.drivers.record import Record
from efhc.drivers.settings import EventDriven
from efhc.drivers.steps import Steps
from efhc.experiments.runs.keeping import RunKeeper
from efhc.experiments.runs.lockstep_run import LOCAL, snapshot_iterations
from efhc.experiments.runs.moments import Moments
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


def collect(run: Run, scenario: Scenario, states: Sequence[Path], keeper: RunKeeper, end: float) -> None:
    """Assemble the tables and models of a run by nodes, whose state folders are `states`.

    Free-running nodes were stopped at second `end`. Raises `EfhcError` if something is missing.
    """
    driver, iterations = run.experiment.driver, run.experiment.iterations
    if isinstance(driver, EventDriven):
        assert driver.sample_seconds is not None
        _collect_free_running(scenario, states, keeper, driver.sample_seconds, end)
        final = _final_models(states, None)
    else:
        final = _final_models(states, iterations)
        _collect_lockstep(run, scenario, states, keeper, final)
    keeper.finish(final.models, final.local, devices_table(scenario, run.seed))


def _final_models(states: Sequence[Path], iterations: int | None) -> Models:
    """Return the models of the last checkpoints: of iteration `iterations`, or of free-running nodes (None)."""
    models, found = [], []
    for state in states:
        try:
            if iterations is None:
                tensors, facts = read_checkpoint(state / "checkpoint.safetensors")
                by_number = {number: name for name, number in facts["arrays"].items()}
                models.append(tensors[by_number[facts["device"]["model"]]])
            else:
                tensors, _ = read_tensors(state / f"checkpoint-{iterations}.safetensors")
                models.append(tensors["model"])
        except (OSError, ValueError, KeyError) as error:
            of = "" if iterations is None else f" of iteration {iterations}"
            raise EfhcError(f"{state} has no checkpoint{of} that can be used ({error})") from None
        found.append(tensors)
    names = [name for name in found[0] if name.startswith(LOCAL)]
    local = {name.removeprefix(LOCAL): np.concatenate([tensors[name] for tensors in found]) for name in names}
    return Models(np.stack(models), local)


def _stacked(rows: Sequence[np.void]) -> Models:
    """Return what nodes recorded at one moment, one row of `read_models` per device."""
    names = [name for name in rows[0].dtype.names or () if name.startswith(LOCAL)]
    local = {name.removeprefix(LOCAL): np.stack([row[name] for row in rows]) for name in names}
    return Models(np.stack([row["model"] for row in rows]), local)


def _joined(tables: Sequence[np.ndarray], column: str) -> np.ndarray:
    return np.concatenate([table[column] for table in tables])


# Lockstep


def _collect_lockstep(run: Run, scenario: Scenario, states: Sequence[Path], keeper: RunKeeper, final: Models) -> None:
    """Assemble the tables of a run by nodes in lockstep.

    All that does not depend on time is bit for bit what `efhc run` computes. The consensus error is null after
    iterations whose models were not recorded.
    """
    experiment, learner = run.experiment, scenario.learner
    iterations, parameters = experiment.iterations, learner.backend.parameters
    fired, losses = np.zeros((iterations, len(states)), dtype=bool), np.full((iterations, len(states)), np.nan)
    for device, state in enumerate(states):
        steps = read_steps(state)  # of iterations that were made again, the last row counts
        made = steps[steps["k"] < iterations]
        fired[made["k"], device], losses[made["k"], device] = made["fired"], made["loss"]
        if (missing := np.flatnonzero(np.isnan(losses[:, device]))).size:
            raise EfhcError(f"device {device} has recorded no iteration {missing[0]}; its files are in {state}")
    (strategy,) = experiment.strategies.values()
    bits_sent = None if form_of(strategy).half_steps is None else _bits_sent(states)
    rows = [read_models(state) for state in states]  # they stay on disk
    places = [{k: place for place, k in enumerate(recorded["k"].tolist())} for recorded in rows]

    def models_after(k: int, *, needed: bool) -> Models | None:
        """Return the models after k iterations; None if they are not needed, and some were not recorded."""
        if missing := [state for state, of in zip(states, places, strict=True) if k not in of]:
            if needed:
                raise EfhcError(f"a model of iteration {k} is missing in {missing[0]}")
            return None
        return _stacked([recorded[of[k]] for recorded, of in zip(rows, places, strict=True)])

    kept = set(snapshot_iterations(run))
    if kept and (first := models_after(0, needed=True)):
        keeper.snapshot(0, first.models)
    record, moments = Record(), Moments(experiment, scenario)
    for k in range(iterations):
        previous, graph = scenario.graphs(k)
        is_kept = k + 1 in kept
        after = final if k + 1 == iterations else models_after(k + 1, needed=is_kept)
        error = np.nan if after is None else consensus_error(after.models)
        bits = None if bits_sent is None else bits_sent(k, graph)[None]
        record.add(
            Steps(k, previous, graph, fired[k : k + 1], losses[k : k + 1], np.array([error]), bits),
            scenario.bandwidths.values,
            parameters,
        )
        if (begins := moments.evaluation_after(k + 1, record)) is not None:
            evaluated = after or models_after(k + 1, needed=True)
            assert evaluated is not None
            record.add_evaluation(learner.evaluate(*evaluated), first=begins)
        if after is not None and is_kept:
            keeper.snapshot(k + 1, after.models)
        if record.is_large:
            keeper.put_away(record.take())
    keeper.put_away(record.take())


def _bits_sent(states: Sequence[Path]) -> Callable[[int, Graph], Ints]:
    """Return a function of k and G(k): the bits that nodes with half-steps sent over each directed link."""
    rows = [read_exchanges(state) for state in states]
    k, neighbours, bits = _joined(rows, "device_k"), _joined(rows, "neighbour"), 8 * _joined(rows, "bytes")
    codes = np.repeat(np.arange(len(states)), [len(of) for of in rows]) * len(states) + neighbours
    order = np.argsort(k, kind="stable")
    k, codes, bits = k[order], codes[order], bits[order]

    def bits_of(iteration: int, graph: Graph) -> Ints:
        here = slice(*np.searchsorted(k, [iteration, iteration + 1]))
        directed, found = graph.directed, np.zeros(2 * len(graph.links), np.int64)
        places = np.searchsorted(directed.sender * graph.devices + directed.receiver, codes[here])
        found[places] = bits[here]  # of an iteration that was made again, once
        return found

    return bits_of


# Free-running


def _collect_free_running(
    scenario: Scenario, states: Sequence[Path], keeper: RunKeeper, sample_seconds: float, end: float
) -> None:
    """Assemble the tables of an event-driven run by nodes that ran on their own clocks.

    A sample has the models that nodes recorded at its time; the accuracy is measured here. The imbalance is null: only
    the nodes together would know it.
    """
    record, learner = EventRecord(), scenario.learner
    steps = [rows[rows["seconds"] <= end] for rows in map(read_steps, states)]
    begun = [read_exchanges(state) for state in states]
    exchanges = [rows[rows["end"] <= end] for rows in begun]
    for device, (made, over) in enumerate(zip(steps, exchanges, strict=True)):
        record.steps += [(device, *row) for row in made[["k", "seconds", "fired", "loss"]].tolist()]
        record.exchanges += [_exchange_row(device, *row) for row in over.tolist()]
    record.steps.sort(key=lambda row: row[2])
    record.exchanges.sort(key=lambda row: row[1])
    record.network.append((0, *scenario.network.graph(0).links.T.tolist()))
    recorded = [read_models(state) for state in states]
    step_times, fired = _joined(steps, "seconds"), _joined(steps, "fired")
    ends, outcomes = _joined(exchanges, "end"), _joined(exchanges, "outcome")
    # As in a simulation, models count when their sending begins, which is soon after the offer.
    starts, sizes = _joined(begun, "start"), _joined(begun, "bytes")
    committed = outcomes == OUTCOMES.index("committed")
    for seconds in (sample_seconds * place for place in range(int(end / sample_seconds + 1e-9) + 1)):
        models = _models_at(recorded, seconds, sample_seconds)
        made, over = step_times <= seconds, ends <= seconds
        counts = made.sum(), (made & fired).sum(), (over & committed).sum(), sizes[starts <= seconds].sum(), len(states)
        names = "steps", "broadcasts", "exchanges", "bytes", "devices"
        so_far = dict(zip(names, map(int, counts), strict=True))
        error, measures = float(consensus_error(models.models)), learner.evaluate(*models).columns
        record.timeline.append({"seconds": seconds, **so_far, "consensus_error": error, **measures})
    keeper.put_away(record.take())


def _exchange_row(
    device: int, start: float, end: float, neighbour: int, device_k: int, neighbour_k: int, beta: float, event: int,
    outcome: int, size: int, norm: float,
) -> tuple[object, ...]:  # fmt: skip
    """Return a row of the table of exchanges; what follows `device` is a row as its node recorded it."""
    known_norm = None if np.isnan(norm) else norm
    iterations = device_k, neighbour_k
    return start, end, device, neighbour, *iterations, beta, event or None, OUTCOMES[outcome], size, known_norm


def _models_at(recorded: Sequence[np.ndarray], seconds: float, every: float) -> Models:
    """Return the model of each device that was recorded for this sample, or the last one before it."""
    chosen = []
    for device, rows in enumerate(recorded):
        places: Ints = np.flatnonzero(rows["seconds"] < seconds + every)
        if not len(rows):
            raise EfhcError(f"device {device} has recorded no model")
        chosen.append(rows[places[-1] if len(places) else 0])
    return _stacked(chosen)
