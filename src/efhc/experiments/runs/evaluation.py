"""The accuracies of a run's models, measured in line, or beside the run while it goes on. The record is the same."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from functools import partial

from efhc.base.arrays import Floats
from efhc.core.state import Local, State
from efhc.drivers.record import Record
from efhc.learning.backends.backend import ScoresNotFinite
from efhc.learning.learner import Learner


class Evaluation:
    """Evaluates models one after the other, and notes their accuracies down in the record."""

    def __init__(
        self,
        record: Record,
        learner: Learner,
        beside: Executor | None = None,
        then: Callable[[int, Floats], None] = lambda iteration, accuracies: None,
    ) -> None:
        """`beside` is where models are evaluated while the run goes on. Default: in line.

        `then` is called there with every iteration whose models were evaluated, once its row is whole, and with the
        accuracy of each device.
        """
        self._record, self._learner, self._beside, self._then = record, learner, beside, then
        self._pending: Future[None] | None = None

    def begin(self, state: State) -> None:
        """Evaluate the models of a state, which are in the record's last row, once the ones before are done.

        Raises `ScoresNotFinite` for the models before, or in line for these.
        """
        self.finish()
        if self._beside is None:
            self._measure(state.k - 1, state.models, state.local)
        else:
            local = {name: rows.copy() for name, rows in state.local.items()}
            measure = partial(self._measure, state.k - 1, state.models.copy(), local)
            self._pending = self._beside.submit(copy_context().run, measure)

    def finish(self) -> None:
        """Wait until all accuracies are in the record. Raises `ScoresNotFinite` with the iteration in front."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _measure(self, iteration: int, models: Floats, local: Local) -> None:
        try:
            accuracies, of_mean_model = self._learner.accuracies(models, local)
        except ScoresNotFinite as error:
            raise error.about(f"after iteration {iteration}") from error
        self._record.add_accuracies(accuracies, of_mean_model, iteration)
        self._then(iteration, accuracies)
