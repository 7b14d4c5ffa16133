"""The runs of a figure with settings, and the facts that its report shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import polars as pl

from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import to_toml
from efhc.experiments.runs.live.tracking import name_of
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.store import Failures, RunStore
from efhc.experiments.studies.changes import Size
from efhc.experiments.studies.settings_file import FigureSetting, SettingsFigure
from efhc.experiments.trackers.tracker import as_folder

FigureT = TypeVar("FigureT", bound=SettingsFigure[Any])


@dataclass(frozen=True)
class SettingRuns(Generic[FigureT]):
    """A figure with settings and its runs."""

    figure: FigureT
    by_setting: list[tuple[FigureSetting, list[Run]]]

    @classmethod
    def of(cls, figure: FigureT, runs: Runs) -> Self:
        """Return the figure with its runs. This reads its data and input files."""
        return cls(figure, [(setting, runs.of(setting.experiment)) for setting in figure.settings])

    @property
    def all(self) -> list[Run]:
        """The runs of all settings, each once."""
        return list({run.key: run for _, runs in self.by_setting for run in runs}.values())

    @property
    def names(self) -> dict[str, str]:
        """What trackers call the runs, by key: by their setting."""
        return {
            run.key: f"{self.figure.name}/{as_folder(setting.name)}/{name_of(run)}"
            for setting, runs in reversed(self.by_setting)
            for run in runs
        }

    def failed(self, failures: Failures) -> list[str]:
        """Return a line for each run that failed: the setting, and the error, which names strategy and seed."""
        return [
            f"{setting.name}: {failures[run.key]}"
            for setting, runs in self.by_setting
            for run in runs
            if run.key in failures
        ]

    def made_with(
        self, strategy: str, store: RunStore, failures: Failures
    ) -> Iterator[tuple[FigureSetting, list[Run], pl.DataFrame]]:
        """Yield the settings in which this strategy has a run, with the runs that were made and their curves.

        Raises the first failure if there is none.
        """
        any_made = False
        for setting, runs in self.by_setting:
            made = [run for run in runs if run.key not in failures]
            if any(run.strategy == strategy for run in made):
                any_made = True
                yield setting, made, pl.concat((store.curve(run) for run in made), how="diagonal_relaxed")
        if not any_made:
            raise next(iter(failures.values()))

    @property
    def configs(self) -> dict[str, str]:
        """The complete config of each setting, by title."""
        return {setting.title: to_toml(setting.experiment) for setting in self.figure.settings}

    def provenance(self, store: RunStore, failures: Failures) -> dict[str, Any]:
        """Return the versions, git state and machine of the first run."""
        first = next(run for run in self.all if run.key not in failures)
        return {key: store.meta(first)[key] for key in ("versions", "git", "machine")}

    def facts(
        self,
        size: Size,
        store: RunStore,
        failures: Failures,
        lasts: Mapping[str, Callable[[Experiment], object]],
        every: Callable[[Experiment], str],
    ) -> dict[str, str]:
        """Return the main facts. `lasts` says by name how long runs are, `every` how often accuracy is measured."""
        figure, experiments = self.figure, self.figure.experiments
        seconds = sum(store.meta(run)["wall_seconds"] for run in self.all if run.key not in failures)
        data = dict.fromkeys(f"{run.data.name}, {len(run.data.y_train):,} training samples" for run in self.all)
        tested = dict.fromkeys(
            f"on {'all' if one.test_samples is None else f'{one.test_samples:,} samples of the'} test set, "
            f"every {every(one)}"
            for one in experiments
        )
        facts = {
            "size": f"--{size}",
            "data": "; ".join(data),
            "devices": _each(one.devices for one in experiments),
            **{name: _each(map(words, experiments)) for name, words in lasts.items()},
            "seeds": ", ".join(map(str, figure.experiment.seeds)),
            "strategies": str(len(figure.strategies)),
            "batch size": _each(one.batch_size for one in experiments),
            "accuracy": "; ".join(tested),
            "runs": str(len(self.all)),
            "failed runs": "; ".join(self.failed(failures)),
            "time": f"{seconds:,.0f} s, summed over runs",
            "command": f"efhc reproduce {figure.name} --{size} --seeds {len(figure.experiment.seeds)}",
        }
        return {name: fact for name, fact in facts.items() if fact}


def _each(values: Iterable[object]) -> str:
    """Return the different values of the settings."""
    return ", ".join(dict.fromkeys(map(str, values)))
