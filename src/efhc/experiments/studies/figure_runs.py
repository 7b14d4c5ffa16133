"""The runs of a figure, and what is made of them.

DIR/figures/NAME.png, NAME.pdf    the figure
of the paper: NAME-i.csv ..       the numbers of each panel
of a frontier: NAME.csv           the means over seeds: per setting and strategy the accuracy at each budget, and what
                                  the strategy spends in total, as a share of ZT's transmission time
               NAME-SETTING.csv   the same per strategy and seed
of controls: NAME.csv             accuracy and bytes at the end: per setting, strategy and seed
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import polars as pl

from efhc.base.saving import write_safely
from efhc.drivers.event_driven.settings import EventDriven
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import to_toml
from efhc.experiments.runs.run import Run, Runs
from efhc.experiments.runs.store import Failures, RunStore
from efhc.experiments.runs.tracking import name_of
from efhc.experiments.studies.presets import PaperFigure, radius_of
from efhc.experiments.studies.settings_figures import (
    Controls,
    FigureSetting,
    FigureSpec,
    Frontier,
    SettingsFigure,
    Size,
    end_of,
)
from efhc.experiments.trackers.tracker import as_folder
from efhc.report.claims.controls import all_ends
from efhc.report.claims.frontier import all_means, budget_table
from efhc.report.claims.panels import panels
from efhc.report.figure_data import (
    ControlsData,
    FigureData,
    FrontierData,
    Illustration,
    Section,
    SettingData,
    TimedSetting,
)

if TYPE_CHECKING:
    from efhc.report.figures import Picture

SpecT = TypeVar("SpecT", bound=FigureSpec)
SettingsT = TypeVar("SettingsT", bound=SettingsFigure[Any])


@dataclass(frozen=True)
class FigureRuns(ABC, Generic[SpecT]):
    """A figure and its runs."""

    figure: SpecT
    parts: list[tuple[str, list[Run]]]
    """The name of each part of the figure, and its runs."""

    @classmethod
    def of(cls, figure: SpecT, runs: Runs) -> Self:
        """Return the figure with its runs. This reads its data and input files."""
        return cls(figure, [(name, runs.of(experiment)) for name, experiment in figure.parts])

    @abstractmethod
    def show(self, size: Size, store: RunStore, failures: Failures, folder: Path) -> Section:
        """Write the figure with its numbers to `folder`, and return what the report shows.

        Raises the first failure if too many runs failed to draw anything.
        """

    @property
    def all(self) -> list[Run]:
        """The runs of all parts, each once."""
        return list({run.key: run for _, runs in self.parts for run in runs}.values())

    @property
    def names(self) -> dict[str, str]:
        """What trackers call the runs, by key: by the first part that has them."""
        return {
            run.key: "/".join([self.figure.name, *([as_folder(part)] if part else []), name_of(run)])
            for part, runs in reversed(self.parts)
            for run in runs
        }

    def failed(self, failures: Failures) -> list[str]:
        """Return a line for each run that failed: its part, and the error, which names strategy and seed."""
        parts = {run.key: part for part, runs in reversed(self.parts) for run in runs}
        failed = [run.key for run in self.all if run.key in failures]
        return [f"{parts[key]}: {failures[key]}" if parts[key] else str(failures[key]) for key in failed]

    def section(
        self,
        data: FigureData | FrontierData | ControlsData,
        size: Size,
        store: RunStore,
        failures: Failures,
        configs: Mapping[str, str],
        more_facts: Mapping[str, str] = {},
        **more: Any,
    ) -> Section:
        """Return what the report shows, with the main facts and with the provenance of the first run."""
        experiments = self.figure.experiments
        made = [run for run in self.all if run.key not in failures]
        seconds = sum(store.meta(run)["wall_seconds"] for run in made)
        timed = isinstance(experiments[0].driver, EventDriven)
        tested = (
            f"on {'all' if one.test_samples is None else f'{one.test_samples:,} samples of the'} test set, "
            f"every {_interval(one)}"
            for one in experiments
        )
        facts = {
            "size": f"--{size}",
            "data": _each((f"{run.data.name}, {len(run.data.y_train):,} training samples" for run in self.all), "; "),
            "devices": _each(one.devices for one in experiments),
            ("virtual seconds" if timed else "iterations"): _each(
                f"{end_of(one):g}" if timed else f"{one.iterations:,}" for one in experiments
            ),
            "seeds": ", ".join(map(str, experiments[0].seeds)),
            "strategies": str(len(self.figure.strategies)),
            "batch size": _each(one.batch_size for one in experiments),
            "accuracy": _each(tested, "; "),
            **more_facts,
            "runs": str(len(self.all)),
            "failed runs": "; ".join(self.failed(failures)),
            "time": f"{seconds:,.0f} s, summed over runs",
            "command": f"efhc reproduce {self.figure.name} --{size} --seeds {len(experiments[0].seeds)}",
        }
        shown = {name: fact for name, fact in facts.items() if fact}
        provenance = {key: store.meta(made[0])[key] for key in ("versions", "git", "machine")}
        return Section(data, configs, shown, provenance, **more)


class PaperRuns(FigureRuns[PaperFigure]):
    """A figure of the paper and its runs."""

    def show(self, size: Size, store: RunStore, failures: Failures, folder: Path) -> Section:
        """Write the panels, and return what the report shows. Raises the first failure if (i)-(iii) have no run."""
        from efhc.report.figures.paper_figure import paper_figure

        figure, (_, curves) = self.figure, self.parts[0]
        made = [run for run in curves if run.key not in failures]
        if not made:
            raise failures[curves[0].key]
        radii = [radius_of(point) for point in figure.connectivity]
        at_radii = [
            (radius, run)
            for radius, (_, runs) in zip(radii, self.parts[1:], strict=True)
            for run in runs
            if run.key not in failures
        ]
        if not any(run.strategy == "ZT" for _, run in at_radii):  # without ZT there are no budgets
            at_radii = []
        connectivity = [store.curve(run).with_columns(radius=pl.lit(radius)) for radius, run in at_radii]
        data = FigureData(
            name=figure.name,
            number=figure.table.number,
            title=figure.table.title,
            curves=pl.concat(store.curve(run) for run in made),
            connectivity=pl.concat(connectivity) if connectivity else None,
            varied=figure.varied,
        )
        numbers = {f"{data.name}-{panel}": table for panel, table in panels(data).items()}
        _write(folder, data.name, numbers, paper_figure(data))
        # The first seed that has the most strategies: the first of all, unless runs failed.
        per_seed = Counter(run.seed for run in made)
        seed = max(figure.experiment.seeds, key=lambda one: per_seed[one])
        of_first_seed = [run for run in made if run.seed == seed]
        illustration = Illustration(
            seed=seed,
            network=store.table(of_first_seed[0], "network"),
            devices=store.table(of_first_seed[0], "devices"),
            events={run.strategy: store.table(run, "events") for run in of_first_seed},
        )
        configs, facts = {"": to_toml(figure.experiment)}, {"radii of panel (iv)": _each(sorted(radii))}
        return self.section(data, size, store, failures, configs, facts, illustration=illustration)


class SettingsRuns(FigureRuns[SettingsT]):
    """A figure of several settings and its runs. A setting in which its main strategy has no run is left out."""

    def made_with(
        self, strategy: str, store: RunStore, failures: Failures
    ) -> Iterator[tuple[FigureSetting, list[Run], pl.DataFrame]]:
        """Yield the settings in which this strategy has a run, with the runs that were made and their curves.

        Raises the first failure if there is none.
        """
        any_made = False
        for setting, (_, runs) in zip(self.figure.settings, self.parts, strict=True):
            made = [run for run in runs if run.key not in failures]
            if any(run.strategy == strategy for run in made):
                any_made = True
                yield setting, made, pl.concat((store.curve(run) for run in made), how="diagonal_relaxed")
        if not any_made:
            raise next(iter(failures.values()))

    def section_of(self, data: FrontierData | ControlsData, size: Size, store: RunStore, failures: Failures) -> Section:
        """Return what the report shows, with the config of each setting."""
        configs = {setting.title: to_toml(setting.experiment) for setting in self.figure.settings}
        return self.section(data, size, store, failures, configs, tuned=self.figure.table.tuned)


class FrontierRuns(SettingsRuns[Frontier]):
    """A frontier and its runs. Without ZT, a setting has no budgets."""

    def show(self, size: Size, store: RunStore, failures: Failures, folder: Path) -> Section:
        from efhc.report.figures.settings_figure import frontier_figure

        table = self.figure.table

        def judged_from(experiment: Experiment) -> float:  # before its second evaluation, little is known of ZT
            return max(table.judged_from, experiment.evaluate_every / experiment.iterations)

        settings = tuple(
            SettingData(setting.name, setting.title, curves, judged_from(setting.experiment), len(made[0].data.y_test))
            for setting, made, curves in self.made_with("ZT", store, failures)
        )
        data = FrontierData(self.figure.name, table.title, settings, table.leaders, table.ceilings)
        numbers = {data.label(setting): budget_table(setting.curves) for setting in settings}
        _write(folder, data.name, numbers | {data.name: all_means(data)}, frontier_figure(data))
        return self.section_of(data, size, store, failures)


class ControlsRuns(SettingsRuns[Controls]):
    """A strategy and its controls, and their runs."""

    def show(self, size: Size, store: RunStore, failures: Failures, folder: Path) -> Section:
        from efhc.report.figures.settings_figure import controls_figure

        table = self.figure.table
        settings = tuple(
            TimedSetting(
                setting.name,
                setting.title,
                curves,
                test_samples=len(made[0].data.y_test),
                seconds=end_of(setting.experiment),
                bandwidths=_bandwidths(made, store),
            )
            for setting, made, curves in self.made_with(table.leader, store, failures)
        )
        data = ControlsData(
            self.figure.name, table.title, settings, table.leader, table.controls, table.common, table.shuffled
        )
        _write(folder, data.name, {data.name: all_ends(data)}, controls_figure(data))
        return self.section_of(data, size, store, failures)


def _write(folder: Path, name: str, numbers: Mapping[str, pl.DataFrame], figure: Picture) -> None:
    """Write the tables by name, and the figure."""
    from efhc.report.figures import save_figure

    for table, rows in numbers.items():
        write_safely(folder / f"{table}.csv", rows.write_csv().encode())
    for ending in ("png", "pdf"):
        save_figure(figure, folder / f"{name}.{ending}")


def _bandwidths(made: list[Run], store: RunStore) -> tuple[float, float]:
    """Return the smallest and the largest bandwidth of the devices, over all seeds."""
    one_per_seed = {run.seed: run for run in made}.values()
    values = pl.concat(store.table(run, "devices")["bandwidth"] for run in one_per_seed)
    return float(values.min()), float(values.max())  # type: ignore[arg-type]


def _interval(experiment: Experiment) -> str:
    """Return how often accuracy is measured."""
    driver = experiment.driver
    if not isinstance(driver, EventDriven):
        return f"{experiment.evaluate_every} iterations"
    seconds = driver.sample_seconds
    return f"{experiment.evaluate_every} median steps" if seconds is None else f"{seconds:g} virtual seconds"


def _each(values: Iterable[object], separator: str = ", ") -> str:
    """Return the different values, in their order."""
    return separator.join(dict.fromkeys(map(str, values)))
