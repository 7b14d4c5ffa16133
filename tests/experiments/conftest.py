"""What tests of studies share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import efhc
from efhc.base.errors import EfhcError
from efhc.experiments.runs.store import RunStore


class NoEngine:
    """Fails the test if a run is made."""

    def make(self, runs, store, progress, observers=None, followers=()):
        pytest.fail("nothing has to be run")


@pytest.fixture(scope="session")
def no_engine() -> NoEngine:
    return NoEngine()


@pytest.fixture(scope="session")
def failing_store() -> Callable[..., type[RunStore]]:
    """Returns a store in which all runs of a strategy fail, or that with one seed; all runs if no strategy is named."""

    def store_of(strategy: str | None = None, seed: int | None = None) -> type[RunStore]:
        class FailingStore(RunStore):
            def make_missing(self, runs, engine, progress, observers=None, followers=()):
                failing = [run for run in runs if strategy in (None, run.strategy) and seed in (None, run.seed)]
                super().make_missing(
                    [run for run in runs if run not in failing], engine, progress, observers, followers
                )
                return {run.key: EfhcError(f"{run.name}: no longer finite") for run in failing}

        return FailingStore

    return store_of


@pytest.fixture(scope="module")
def no_comparison() -> Iterator[None]:
    """The picture that every run draws takes longer than the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(efhc.Result, "plot", lambda self, path=None: None)
        yield
