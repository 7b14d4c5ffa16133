"""Devices that pace themselves: they do not run apart where messages are late, and bad settings are refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

import efhc

DRIVER = {
    "kind": "event-driven",
    "compute": {"kind": "constant", "seconds": 0.2},
    "links": {"kind": "shared", "latency": 0.5},
    "bandwidth": "measured",
}


def accuracy(**settings: Any) -> float:
    usual: dict[str, Any] = {
        "devices": 10,
        "iterations": 500,
        "seeds": [0],
        "bandwidths": {"kind": "constant", "value": 4000.0},
        "driver": DRIVER,
        "strategies": {"paced": {"kind": "paced"}},
    }
    found: float = efhc.simulate(**usual | settings).summary()["accuracy"][0]
    return found


@pytest.mark.parametrize("network", ["complete", "star"])
def test_models_stay_together_where_messages_are_late(network: str):
    """A correction that goes on learning as fast as at first runs apart here."""
    assert accuracy(network=network) > 0.9


@pytest.mark.parametrize(
    "bad",
    [
        {"window": 0},
        {"window": 65},
        {"pacing": {"seconds": 0}},
        {"pacing": {"seconds": float("nan")}},
        {"pacing": {"backlog": -1}},
        {"bits": 1},
        {"links": {"kind": "tree"}},
        {"pacing": None},
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any]):
    with pytest.raises(ValidationError, match=next(iter(bad)) if bad != {"links": {"kind": "tree"}} else "all"):
        efhc.Paced(**bad)


def test_what_does_not_go_with_a_pace_is_refused():
    with pytest.raises((ValidationError, efhc.InputError), match="pacing"):
        efhc.Composed(pacing={"seconds": 1.0})
    with pytest.raises((ValidationError, efhc.InputError), match="window"):
        efhc.Composed(mixing={"kind": "half-steps", "window": 2})
