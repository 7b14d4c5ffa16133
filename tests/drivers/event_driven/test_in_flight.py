"""Messages on their way: who can send nothing, what does not move, and what is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from efhc.core.protocol import Body, Message, ModelReply, Ready
from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.in_flight import MessagesInFlight
from efhc.drivers.event_driven.links import InstantLinks, PerLink, SharedLinks, draw_transfers
from efhc.drivers.event_driven.rates import RateFile

SEED = Randomness(1)
TOKEN, OTHER = (0, 1, 1), (1, 0, 1)
MODEL: Any = "a model"
BODY = Body(TOKEN, OTHER, MODEL)


class Own:
    """A link model of the user's own that does what another one does."""

    def __init__(self, links: Any) -> None:
        self._links = links

    def transfers(self, bandwidths: Any, randomness: Randomness) -> Any:
        inner = self._links.transfers(bandwidths, randomness)

        class Same:
            def __getattr__(self, name: str) -> Any:
                return getattr(inner, name)

        return Same()


@pytest.fixture(params=["per-link", "shared", "own"])
def messages_at(request: pytest.FixtureRequest, tmp_path: Path):
    """Messages of models of 4 parameters. The rate of device 0 is 4 until the changes (seconds, rate) of a test."""

    def made(*changes: tuple[float, float]) -> MessagesInFlight:
        rows = "".join(f"{seconds},0,{rate}\n" for seconds, rate in changes)
        path = tmp_path / "rates.csv"
        path.write_text("seconds,device,rate\n" + rows)
        links: Any = (SharedLinks if request.param == "shared" else PerLink)(rates=RateFile(path=path), latency=0.5)
        links = Own(links) if request.param == "own" else links
        return MessagesInFlight(draw_transfers(links, np.full(3, 4.0), SEED), 4, 32, [4.0] * 3)

    return made


def pass_time(messages: MessagesInFlight, until: float) -> list[tuple[str, Message]]:
    found = []
    while (time := messages.next_time()) <= until:
        found += [(what, message) for what, _, _, message in messages.take(time)]
    return found


def test_a_device_is_silent_while_its_rate_is_0(messages_at):
    messages = messages_at((1.0, 0.0), (5.0, 4.0))
    messages.send(0.75, 0, 1, BODY)
    assert not messages.is_stalled(TOKEN)
    assert pass_time(messages, 2.0) == [("stalled", BODY)]
    assert messages.is_stalled(TOKEN)
    assert not messages.moves(TOKEN)
    assert messages.silent_devices(2.0) == {0: 1.0}
    assert pass_time(messages, 5.25) == []
    assert not messages.is_stalled(TOKEN)
    assert messages.silent_devices(5.25) == {}  # it moves again, though nothing has arrived
    assert pass_time(messages, 9.0) == [("arrived", BODY)]
    assert messages.silent_devices(9.0) == messages.silent == {}
    assert not messages.is_stalled(TOKEN)


def test_a_model_that_a_newcomer_asked_for_counts(messages_at):
    messages = messages_at((1.0, 0.0), (5.0, 4.0))
    messages.send(0.75, 0, 1, ModelReply(3, MODEL))
    pass_time(messages, 2.0)
    assert messages.silent_devices(2.0) == {0: 1.0}
    pass_time(messages, 9.0)
    assert messages.silent == {}


def test_a_device_whose_models_were_withdrawn_is_silent_until_its_rate_is_above_0(messages_at, request):
    messages = messages_at((1.0, 0.0), (5.0, 4.0), (6.0, 0.0))
    messages.send(0.75, 0, 1, BODY)
    pass_time(messages, 2.0)
    messages.withdraw(3.0, TOKEN)
    assert messages.silent_devices(4.0) == {0: 1.0}
    if "own" in request.node.callspec.id:  # nothing is known of its rate while it sends nothing
        return
    assert messages.silent_devices(5.5) == {}
    assert messages.silent_devices(7.0) == {}  # it could have sent at 5.5, and has not tried since
    messages.send(8.0, 0, 1, BODY)
    pass_time(messages, 8.0)
    assert messages.silent_devices(9.0) == {0: 8.0}


def test_silence_is_part_of_a_checkpoint(messages_at):
    first, second = messages_at((1.0, 0.0)), messages_at((1.0, 0.0))
    first.send(0.75, 0, 1, BODY)
    pass_time(first, 2.0)
    second.restore(first.state())
    assert second.silent_devices(3.0) == {0: 1.0}
    assert second.is_stalled(TOKEN)


def test_a_cut_loses_what_is_under_way_and_ignores_unknown_tickets():
    transfers: Any = PerLink().transfers(np.full(3, 4.0), SEED)
    cut = transfers.cut
    transfers.cut = lambda now, i, j: [99, *cut(now, i, j)]
    messages = MessagesInFlight(transfers, 4, 32, [4.0] * 3)
    messages.send(0.0, 0, 1, BODY)
    messages.cut(0.5, 1, 0)
    messages.cut(0.5, 1, 2)
    assert pass_time(messages, 9.0) == []
    assert not messages.moves(TOKEN)


def test_what_takes_no_time_is_queued():
    instant = MessagesInFlight(draw_transfers(InstantLinks(), np.ones(3), SEED), 4, 32, [1.0] * 3)
    assert (instant.models_at_once, instant.headers_at_once) == (True, True)
    timed = MessagesInFlight(draw_transfers(PerLink(), np.ones(3), SEED), 4, 32, [1.0] * 3)
    assert (timed.models_at_once, timed.headers_at_once) == (False, True)
    for messages, queued in ((instant, [Ready(TOKEN, OTHER), BODY]), (timed, [Ready(TOKEN, OTHER)])):
        for message in (Ready(TOKEN, OTHER), BODY):
            messages.send(0.0, 0, 1, message)
        assert [message for _, _, message in messages.queue] == queued
        assert not messages.is_stalled(TOKEN)
