"""Draw everything that an experiment and a seed determine besides the strategy: the scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import InputError, within
from efhc.base.own_code import is_built_in, quoting
from efhc.core.randomness import Coins, Randomness
from efhc.core.triggers import Bandwidths
from efhc.drivers.event_driven.churn import draw_churn
from efhc.drivers.event_driven.compute import draw_compute_times
from efhc.drivers.event_driven.links import draw_transfers
from efhc.drivers.general import changing_graph
from efhc.drivers.settings import EventDriven
from efhc.experiments.config.experiment import Experiment
from efhc.learning.backends import backend_for
from efhc.learning.data import Dataset
from efhc.learning.learner import Learner
from efhc.learning.measures import measure_in, measures_of
from efhc.learning.partition import set_aside
from efhc.network.topologies import CheckedGraphs, DrawnTopology, GraphsOverTime
from efhc.scenarios.personal import personalized
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import form_of

if TYPE_CHECKING:
    from efhc.experiments.runs.run import Run


def load_data(experiment: Experiment) -> Dataset:
    """Return the data set of an experiment, the same for every seed. Raises `InputError` if it cannot be used."""
    with within("data"):
        # The second `load` prepares what a source of the user's own returns; with built-in ones it does nothing.
        data = experiment.data.load(experiment.precision).load(experiment.precision)
    if experiment.test_samples is None or experiment.validation is not None:  # which is drawn by device
        return data
    return data.tested_on(experiment.test_samples)


def draw_parts(experiment: Experiment, data: Dataset, seed: int) -> list[Ints]:
    """Return the numbers of each device's training samples. Raises `InputError` if the partition cannot be used."""
    return _split(experiment, data, seed)[0]


def _split(experiment: Experiment, data: Dataset, seed: int) -> tuple[list[Ints], list[Ints]]:
    """Return the training samples of each device, and what it sets aside for validation: nothing without that."""
    with within("partition"), quoting(experiment.partition, "kind"):
        parts = experiment.partition.split(data.read_only(), experiment.devices, Randomness(seed))
        parts = _checked_parts(parts, experiment.devices, len(data.y_train))
    return (parts, []) if experiment.validation is None else set_aside(parts, experiment.validation, Randomness(seed))


def _with_validation(data: Dataset, aside: list[Ints], most: int | None) -> tuple[Dataset, Ints]:
    """Return the data set tested on what devices have set aside, device by device, and the number of each.

    Of more than `most` samples, each device has its share.
    """
    if most is not None:
        share = min(1.0, most / sum(map(len, aside)))
        aside = [samples[: max(1, round(share * len(samples)))] for samples in aside]
    return data.with_test_samples(np.concatenate(aside)), np.array([len(samples) for samples in aside])


def draw_network(experiment: Experiment, seed: int) -> GraphsOverTime:
    """Return the graphs G(0), G(1), ... of a seed. Raises `InputError` if the network cannot be used."""
    with within("network"), quoting(experiment.network, "kind"):
        network = experiment.network.over_time(experiment.devices, Randomness(seed))
        network = network if is_built_in(experiment.network) else CheckedGraphs(network, experiment.devices)
    with quoting(experiment.network, "network"):
        network.graph(0)
    if isinstance(experiment.driver, EventDriven):
        check_weights(network, "event-driven")
    return network


def check_weights(network: GraphsOverTime, runs_on: Literal["event-driven", "nodes"]) -> None:
    """Raise `InputError` if links have weights of their own. Off lockstep, devices know those of Metropolis only."""
    if network.graph(0).own_weights is not None:
        what, allowed = "the driver is 'event-driven'", "driver.kind = 'lockstep'"
        if runs_on == "nodes":
            what = "nodes know of their neighbours' links only how many there are"
            allowed = "another network; or `efhc run`"
        raise InputError("network", f"links with other weights than Metropolis', while {what}", allowed)


def draw_scenario(
    experiment: Experiment,
    data: Dataset,
    seed: int,
    threads: int = 1,
    *,
    parts: list[Ints] | None = None,
    devices_apart: bool | None = None,
    is_of_one_device: bool = False,
) -> Scenario:
    """Return the scenario of a seed, the same for all strategies. Raises `InputError` if a setting cannot be used.

    `parts` are the samples of each device; default: those of the experiment's partition. `devices_apart` says that
    each device will be in an iteration of its own; default: whether the experiment's driver says so.
    `is_of_one_device` says that gradients will be those of a single device.
    """
    randomness, devices = Randomness(seed), experiment.devices
    # Code of the user's own gets data that it cannot write to: all runs share them.
    seen = data.read_only()
    network = draw_network(experiment, seed)
    with within("bandwidths"), quoting(experiment.bandwidths, "kind"):
        bandwidths = _checked_bandwidths(experiment.bandwidths.draw(devices, randomness), devices)
    tested = None
    if parts is None:
        parts, aside = _split(experiment, data, seed)
        if aside:
            data, tested = _with_validation(data, aside, experiment.test_samples)
    for name, schedule in (("step_size", experiment.step_size), ("threshold_decay", experiment.threshold_decay)):
        if schedule is not None and not is_built_in(schedule):
            with quoting(schedule, name):
                _check_number(name, schedule(0))
    backend = backend_for(
        experiment.model,
        data,
        randomness,
        experiment.backend,
        experiment.device,
        threads,
        batch_size=None if experiment.batch_size == "full" else experiment.batch_size,
        devices=1 if is_of_one_device else devices,
        devices_apart=isinstance(experiment.driver, EventDriven) if devices_apart is None else devices_apart,
    )
    learner = Learner(backend, data, parts, experiment.batch_size, randomness, experiment.partition, tested)
    with np.errstate(over="ignore"):
        if not np.isfinite(backend.parameters / bandwidths.values).all():
            smallest = bandwidths.values.min()
            raise InputError("bandwidths", smallest, "bandwidths for which the time n / b_i is a finite number")

    def initial_models() -> Floats:
        with within("initial_models"), quoting(experiment.initial_models, "kind"):
            given = experiment.initial_models.models(experiment.model, seen, devices, randomness)
            return _checked_models(given, (devices, backend.parameters), experiment)

    def initial_model(device: int) -> Floats:
        kind = experiment.initial_models
        own: Floats
        if is_built_in(kind):
            with within("initial_models"):
                given = kind.model_of(device, experiment.model, seen, devices, randomness)
                (own,) = _checked_models(given[None], (1, backend.parameters), experiment)
        else:  # it may have nothing but `models`, or have changed that alone
            own = initial_models()[device].copy()
        return own

    return Scenario(
        network=network,
        bandwidths=bandwidths,
        learner=learner,
        initial_models=initial_models,
        initial_model=initial_model,
        coins=Coins(randomness, devices),
        step_size=experiment.step_size,
        threshold_decay=experiment.threshold_decay or experiment.step_size,
        exchange_at_start=experiment.exchange_at_start,
    )


def check_driver(experiment: Experiment, scenario: Scenario, seed: int) -> None:
    """Draw what the driver of a run draws besides the scenario. Raises `InputError` if a setting cannot be used."""
    driver, devices, randomness = experiment.driver, range(experiment.devices), Randomness(seed)
    if not isinstance(driver, EventDriven):
        return
    clock = draw_compute_times(driver.compute, len(devices), randomness)
    churn = draw_churn(driver.churn, len(devices), randomness)
    draw_transfers(driver.links, scenario.bandwidths.values, randomness)
    if not is_built_in(driver.compute):
        for device in devices:
            clock.seconds(device, 0)
    if driver.churn is not None and not is_built_in(driver.churn):
        for device in devices:
            churn.events.next_event(device, 0)


def check_strategies(experiment: Experiment, scenario: Scenario) -> None:
    """Raise `InputError` if a strategy cannot run on the graphs, or its personal models do not fit the model."""
    before, now = scenario.network.graph(0), scenario.network.graph(1)
    for name, strategy in experiment.strategies.items():
        if (form := form_of(strategy, name)).needs_static and not now.has_links_of(before):
            raise changing_graph(form, 1, name)
        personalized(scenario, strategy, name)


def check_measure(experiment: Experiment, scenario: Scenario) -> None:
    """Raise `InputError` unless the scenario can give the measure of the experiment, and that can reach its target."""
    learner, target = scenario.learner, getattr(experiment.driver, "target", None)
    known = measures_of(learner.backend.metrics)
    measure = measure_in(experiment.measure, known)
    if target is not None and measure.metric == "accuracy" and not 0 < target <= 1:
        raise InputError("driver.target", target, f"a number above 0, at most 1: a value of {measure.name}")
    fields = {"measure": measure}
    if experiment.early_stopping is not None:
        field = "early_stopping.measure"
        fields[field] = measure_in(experiment.early_stopping.measure, known, field)
    for field, one in fields.items():
        if one.is_own and (learner.own.coverage == 0).any():
            raise InputError(field, one.name, one.metric, f"{learner.own.problem()}. Use {one.metric}.")


class Scenarios:
    """The scenarios of the runs of an experiment: those with one seed share one, which is drawn once."""

    def __init__(self) -> None:
        self._drawn: dict[tuple[int, str | None], Scenario] = {}
        """By seed, and by backend if a run names one."""
        self._users: Counter[int] = Counter()
        """The number of runs that still need the scenario of each seed."""
        self._drawing = Lock()
        """Held while a scenario is drawn: torch cannot trace two modules at the same time."""

    def expect(self, run: Run) -> None:
        """Keep the scenario of a run, once it is drawn, until `release` is called."""
        self._users[run.seed] += 1

    def of(
        self,
        run: Run,
        threads: int = 1,
        warn: Callable[[str], None] = lambda text: None,
        backend: str | None = None,
    ) -> Scenario:
        """Return the scenario of a run, with a backend that may differ from that of its experiment.

        `warn` is called if its network is not connected.
        """
        with self._drawing:
            which = run.seed, backend
            if which not in self._drawn:
                whole = run.whole if backend is None else run.whole.model_copy(update={"backend": backend})
                scenario = draw_scenario(whole, run.data, run.seed, threads)
                check_strategies(run.whole, scenario)
                check_measure(run.whole, scenario)
                self._drawn[which] = scenario
                graph = scenario.network.graph(0)
                drawn_so = isinstance(run.whole.network, DrawnTopology)  # with connected = false
                if graph is scenario.network.graph(1) and not graph.is_connected and not drawn_so:
                    warn(f"seed {run.seed}: the network is not connected: no information passes between its parts")
                if problem := scenario.learner.own.problem():
                    warn(f"seed {run.seed}: {problem}")
            return personalized(self._drawn[which], run.whole.strategies[run.strategy], run.strategy)

    def release(self, run: Run) -> None:
        """Forget the scenario of a run that has ended, if no other run needs it."""
        with self._drawing:
            self._users[run.seed] -= 1
            if not self._users[run.seed]:
                self._drawn = {which: one for which, one in self._drawn.items() if which[0] != run.seed}


# Compiled loops do not check indices, so what the user's own objects return is checked here.


def _checked_parts(parts: Any, devices: int, samples: int) -> list[Ints]:
    allowed = f"{devices} arrays of sample numbers, 0 to {samples - 1}, none of them empty"
    try:
        checked = [np.asarray(part) for part in parts]
    except (TypeError, ValueError) as error:
        raise InputError("split", f"a partition that cannot be read ({error})", allowed) from None
    if len(checked) != devices:
        raise InputError("split", f"a partition of {len(checked)} parts", allowed)
    for device, part in enumerate(checked):
        if part.ndim != 1 or part.dtype.kind not in "iu" or not len(part):
            raise InputError("split", f"{part.dtype} of shape {part.shape} for device {device}", allowed)
        if part.min() < 0 or part.max() >= samples:
            raise InputError("split", f"numbers from {part.min()} to {part.max()} for device {device}", allowed)
    return checked


def _checked_bandwidths(given: Any, devices: int) -> Bandwidths:
    if not isinstance(given, Bandwidths) or np.shape(given.values) != (devices,):
        raise InputError("kind", f"a {type(given).__name__} from draw", f"efhc.Bandwidths with {devices} values")
    values = np.array(given.values, dtype=np.float64)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise InputError("kind", "bandwidths that are not positive and finite", "positive numbers")
    values.flags.writeable = False
    return Bandwidths(values.view(), given.nominal)


def _check_number(field: str, given: Any) -> None:
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise InputError(field, f"{given!r} at k = 0", "a number that is finite and not negative")


def _checked_models(given: Any, shape: tuple[int, int], experiment: Experiment) -> Floats:
    """Return the initial models, in memory that belongs to the run: it writes to them."""
    models = np.asarray(given)
    if models.shape != shape or models.dtype.kind not in "fiu":
        raise InputError("models", f"{models.dtype} of shape {models.shape}", f"numbers of shape {shape}")
    if models.dtype == experiment.precision and models.flags.c_contiguous and is_built_in(experiment.initial_models):
        return models  # of a built-in kind, which makes new and finite ones
    with np.errstate(over="ignore"):
        own: Floats = np.array(models, dtype=experiment.precision, order="C")
    if not np.isfinite(own).all():
        raise InputError("models", f"numbers that are not finite in {experiment.precision}", "finite numbers")
    return own
