"""docs/asynchrony.md says what the code does: names, settings, times, and the numbers that it prints."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import efhc
from efhc.core import device, protocol
from efhc.core.cost import ACKNOWLEDGEMENT_BYTES, FRAME_HEADER_BYTES
from efhc.core.randomness import Randomness
from efhc.drivers.event_driven import record
from efhc.drivers.event_driven.churn import ChurnPolicy
from efhc.drivers.event_driven.simulator import Simulator
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.learning.measures import CLASSIFICATION, measures_of

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "asynchrony.md").read_text()


def section(page: str, title: str) -> str:
    """The text under a heading, up to the next heading of the same or a higher level."""
    level = len(re.search(rf"^(#+) {re.escape(title)}$", page, re.MULTILINE)[1])
    return re.split(rf"^#{{1,{level}}} ", page.split(f"{'#' * level} {title}\n")[1], flags=re.MULTILINE)[0]


def first_cells(text: str) -> list[str]:
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]


def in_code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_the_messages_of_an_exchange_are_those_of_the_protocol():
    named = set(re.findall(r"\w+", section(PAGE, "An exchange")))
    assert {message.__name__ for message in get_args(protocol.Message)} - {"ModelRequest", "ModelReply"} <= named


def test_settings_and_outcomes_exist():
    assert set(re.findall(r"`driver\.(\w+)", PAGE)) - {"kind"} <= set(efhc.EventDriven.model_fields)
    assert set(re.findall(r"`churn\.(\w+)", PAGE)) <= set(ChurnPolicy.model_fields)
    assert set(re.findall(r"`links\.(\w+)", PAGE)) <= set(efhc.SharedLinks.model_fields)
    for kind in (efhc.InstantLinks, efhc.PerLink, efhc.SharedLinks):
        assert f"| `{kind.model_fields['kind'].default}` |" in section(PAGE, "What time is in a simulation")
    for outcome in re.findall(r'"(\w+)"', protocol.Ended.__doc__):
        assert f"| `{outcome}` |" in section(PAGE, "What the tables mean")


def test_the_columns_of_the_tables_are_described():
    text = section((DOCS / "files.md").read_text(), "An event-driven run")
    named = {name for cell in first_cells(text) for name in in_code(cell)}
    measures = set(measures_of(CLASSIFICATION)) - {"accuracy", "own_accuracy", "loss"}  # under "Measures"
    assert named == {*record.TIMELINE, *record.EXCHANGES} - measures
    steps = next(part for part in text.split("\n\n") if part.startswith("A row of `steps.parquet`"))
    assert set(record.STEPS) <= set(in_code(steps))


def test_the_bytes_of_headers():
    assert [str(FRAME_HEADER_BYTES), str(ACKNOWLEDGEMENT_BYTES)] == re.findall(r"(\d+) bytes", section(PAGE, "Limits"))


def test_the_sketches_print_what_the_page_says():
    printed = [
        line for block in re.findall(r"```text\n((?:seed|rate) .*?)```", PAGE, re.DOTALL) for line in block.splitlines()
    ]
    assert runpy.run_path(str(DOCS / "asynchrony_sketches.py"))["lines"]() == printed


@pytest.mark.parametrize(("rate", "guard"), [(0.5, None), (0.3, None), (1.0, "degree")])
def test_without_delay_half_steps_are_the_recursion_of_the_page(rate, guard):
    """x(k+1) = x(k) - L (x(k) + x(k-1)): whole models, no gradients worth mentioning, a graph that stays."""
    mixing = efhc.HalfStepsMixing(rate=rate, guard=guard)
    experiment = Experiment(
        devices=8,
        seeds=[0],
        iterations=6,
        step_size=efhc.Constant(value=1e-30),
        precision="float64",
        strategies={"one": efhc.Composed(trigger=efhc.AlwaysTrigger(), mixing=mixing)},
        keep_models_every=1,
    )
    models = efhc.simulate(experiment).snapshots("one", 0)
    graph = draw_scenario(experiment, load_data(experiment), 0).network.graph(0)
    i, j = graph.links.T
    most = np.maximum(graph.degrees[i], graph.degrees[j])
    weights = np.minimum(rate / (1 + most), 1 / (2 * most))
    laplacian = np.zeros((8, 8))
    np.add.at(laplacian, (np.r_[i, j], np.r_[j, i]), np.r_[-weights, -weights])
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
    before = x = models[0]
    for k in range(1, 7):
        before, x = x, x - laplacian @ (x + before)
        assert np.allclose(models[k], x, rtol=0, atol=1e-12)
        assert np.linalg.norm(x) <= np.linalg.norm(models[0])


LATENCY, RATES = 0.5, (650.0, 65.0)


def first_exchange(*, slow: int, crossed: bool) -> tuple[float, int]:
    """When the first exchange of two devices is committed, and who decided it."""
    rates = RATES if slow == 1 else RATES[::-1]
    csv = {"kind": "list", "values": list(rates)}
    driver = efhc.EventDriven(
        compute=efhc.ConstantCompute(seconds=1000.0), links=efhc.PerLink(latency=LATENCY), sample_seconds=1e6
    )
    strategy = efhc.ZeroThreshold() if crossed else OnlyTheFirst()
    experiment = Experiment(
        devices=2, network="complete", bandwidths=csv, driver=driver, strategies={"one": strategy}, iterations=1
    )
    scenario = draw_scenario(experiment, load_data(experiment), 0)
    assert scenario.learner.backend.parameters == 650
    simulator = Simulator(scenario, strategy, driver, 1, Randomness(0))
    while not simulator.is_over:
        simulator.advance()
    (row,) = simulator.record.exchanges
    start, end, decider, *_, outcome, _, _ = row
    assert (start, outcome) == (0.0, "committed")
    return end, decider


class OnlyTheFirst(efhc.Strategy):
    """Device 0 fires, and no other."""

    def thresholds(self, k, gamma, bandwidths, coins):
        return [0.0] + [float("inf")] * (len(bandwidths.values) - 1)


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("slow", [0, 1])
def test_how_long_an_exchange_takes(slow, crossed):
    mine, theirs = (650 / rate for rate in (RATES if slow == 1 else RATES[::-1]))
    headers = 3 if crossed else 4
    assert f"max({headers} L + n / b_i, 2 L + n / b_j)" in PAGE
    assert first_exchange(slow=slow, crossed=crossed) == (max(headers * LATENCY + mine, 2 * LATENCY + theirs), 0)


@pytest.mark.parametrize("degree", [1, 3, 16])
def test_up_to_d_exchanges_get_the_metropolis_share_and_the_next_ones_less(degree):
    one = device.Device(0, 0, "w", "w", degree=degree)
    shares = [device.take_share(one) for _ in range(degree + 3)]
    assert shares[:degree] == [1 / (1 + degree)] * degree
    assert all(share < 1 / (1 + degree) for share in shares[degree:])
    assert sum(shares) < 1
