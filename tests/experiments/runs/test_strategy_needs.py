"""What strategies beyond the paper's form need, and what is not for them."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

import efhc
from efhc.base.errors import EfhcError, InputError
from efhc.core.memory import Memory
from efhc.core.parts import Moved
from efhc.experiments.runs import resources
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.tables import require_papers_form
from efhc.experiments.studies.theory_check import check_run
from efhc.experiments.studies.theory_monitor import TheoryMonitor
from efhc.experiments.studies.theory_plan import plan_theory

SMALL = {"devices": 4, "seeds": 0, "iterations": 2, "network": efhc.Ring()}
PARAMETERS = 650  # of an SVM for the digits: 64 x 10, and 10


class Remembers:
    """A strategy of one's own that sends nothing."""

    memory: ClassVar = {"mine": Memory(size="model"), "theirs": Memory(per="link", size=3, dtype="float64")}

    def step(self, now, models, gradients, memory):
        return Moved(models - now.step_size * gradients, np.zeros(2 * len(now.graph.links), dtype=np.int64))


def memory_of(**fields) -> resources.MemoryNeeds:
    experiment = efhc.Experiment(**SMALL | fields)
    return resources.memory_of(experiment, Runs().inputs(experiment).data)


def forecast(**fields) -> int:
    """What the strategies need in addition to the paper's."""
    return memory_of(**fields).running - memory_of(precision=fields.get("precision", "float32")).running


def test_a_run_counts_what_its_strategy_remembers():
    of_devices, of_links, spent = 4 * PARAMETERS * 4, 2 * 4 * 3 * 8, 4 * 8
    assert forecast(strategies={"mine": Remembers()}) == 2 * (of_devices + of_links + spent)
    assert forecast(strategies={"mine": Remembers()}, precision="float64") == 2 * (2 * of_devices + of_links + spent)
    # On a graph that stays, all neighbours know the same of a device: the next of that is computed beside it.
    entrywise = {"entrywise": efhc.Entrywise()}
    of_entrywise = forecast(strategies=entrywise)
    steps, elapsed = 4 * 8, 2 * 4 * 8
    assert of_entrywise == of_devices + 2 * (of_devices + spent + steps + elapsed)
    both = {"mine": Remembers(), **entrywise, "ZT": efhc.ZeroThreshold()}
    assert forecast(strategies=both) == of_entrywise, "the most demanding of them"
    # On one that changes, each end of a link has told and taught a model of its own.
    links_up = efhc.RandomLinks(topology=efhc.Ring(), up_probability=1.0)
    told_and_taught = 2 * 2 * 4 * PARAMETERS * 4
    changing = forecast(strategies=entrywise, network=links_up)
    assert changing == 2 * (of_devices + spent + steps + elapsed + told_and_taught)


def test_a_strategy_that_needs_too_much_memory_is_refused(monkeypatch):
    experiment = efhc.Experiment(**SMALL, strategies={"mine": Remembers()})
    data = Runs().inputs(experiment).data
    needed = resources.memory_of(experiment, data).running + data.x_test.nbytes + resources.LEFT_FREE
    monkeypatch.setattr(resources, "available_bytes", lambda: needed)
    assert resources.plan(experiment, data, 1, 1).runs_at_once == 1
    monkeypatch.setattr(resources, "available_bytes", lambda: needed - 1)
    with pytest.raises(EfhcError, match=r"^memory: 1 runs of 4 devices with 650 parameters each need"):
        resources.plan(experiment, data, 1, 1)


def test_the_step_of_a_strategy_may_need_room_too():
    needs = memory_of(strategies={"mine": Remembers()})
    assert needs.at_times == resources.STEP_ARRAYS * needs.models
    assert memory_of(strategies={"entrywise": efhc.Entrywise()}).at_times == 0


def test_a_run_with_devices_on_their_own_clocks_counts_the_models_under_way(monkeypatch):
    lockstep = memory_of()
    data = Runs().inputs(efhc.Experiment(**SMALL)).data
    event_driven = memory_of(driver="event-driven")
    assert event_driven.running == lockstep.running + lockstep.models
    assert event_driven.at_times == 2 * 4 * 4 * PARAMETERS  # both ends of four links
    for fields, needed in (({}, lockstep), ({"driver": "event-driven"}, event_driven)):
        for spare, at_once in ((0, 2), (-1, 1)):
            free = resources.LEFT_FREE + data.x_test.nbytes + 2 * (needed.running + needed.at_times) + spare
            monkeypatch.setattr(resources, "available_bytes", lambda free=free: free)
            assert resources.plan(efhc.Experiment(**SMALL | fields), data, 4, 4).runs_at_once == at_once


def test_the_papers_analysis_is_for_strategies_of_its_form(tmp_path):
    require_papers_form(efhc.Experiment(**SMALL))
    changed = efhc.Experiment(**SMALL, strategies={"ZT": efhc.ZeroThreshold(), "mine": Remembers()})
    refused = (
        r"^strategies.mine: cannot use 'Remembers'. Use strategies that differ from EF-HC in nothing but their "
        r"thresholds, which the paper's analysis is about"
    )
    with pytest.raises(InputError, match=refused):
        TheoryMonitor(changed, print)
    with pytest.raises(InputError, match=refused):
        plan_theory(changed)
    efhc.simulate(**SMALL, strategies={"entrywise": efhc.Entrywise()}, out=tmp_path / "run")
    with pytest.raises(InputError, match=r"^strategies: .*entrywise differs from EF-HC"):
        check_run(tmp_path / "run")


def test_the_papers_analysis_is_about_messages_that_arrive():
    lossy = efhc.Experiment(**SMALL, strategies={"ZT": efhc.ZeroThreshold()}, driver={"kind": "lockstep", "loss": 0.1})
    with pytest.raises(InputError, match=r"^driver.loss: cannot use 0.1. Use no value; the paper's analysis is about"):
        plan_theory(lossy)
