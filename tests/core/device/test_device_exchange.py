"""Single exchanges, message by message."""

from __future__ import annotations

import math

import pytest
from witness import Weights, combine

from efhc.core import protocol
from efhc.core.device import Device, react, steps_in_order

FIRES, DOES_NOT = protocol.Begin(1.0, 0.0), protocol.Begin(0.0, math.inf)


class Talkers:
    """Devices whose messages lie in `mail` until a test delivers them."""

    def __init__(self, *values):
        self.cores = [Device(i, 0, model, model) for i, model in enumerate(map(Weights, values))]
        self.mail = []
        """(from, to, message)"""
        self.effects = []

    def do(self, i, event):
        self.effects = react(self.cores[i], event, combine)
        for effect in self.effects:
            if isinstance(effect, protocol.Send):
                self.mail.append((i, effect.neighbour, effect.message))
            elif isinstance(effect, protocol.Apply):
                self.step(i)

    def step(self, i):
        core = self.cores[i]
        moved = sum(step.beta * (step.received.value - step.sent.value) for step in steps_in_order(core))
        effects, self.effects = self.effects, []
        self.do(i, protocol.Stepped(Weights(core.model.value + moved), len(core.steps)))
        self.effects = effects + self.effects

    def link(self, i, j, *, up=True):
        self.mail = [letter for letter in self.mail if {letter[0], letter[1]} != {i, j}]
        for a, b in ((i, j), (j, i)):
            self.do(a, protocol.LinkUp(b) if up else protocol.LinkDown(b))

    def deliver(self, kind, to):
        """The oldest message of this kind to this device."""
        letter = next(letter for letter in self.mail if isinstance(letter[2], kind) and letter[1] == to)
        self.mail.remove(letter)
        self.do(to, protocol.Received(letter[0], letter[2]))
        return letter[2]

    def deliver_all(self):
        while self.mail:
            i, j, message = self.mail.pop(0)
            self.do(j, protocol.Received(i, message))

    def kinds(self):
        return [type(message) for _, _, message in self.mail]

    def done(self):
        """What the last event led to, but for messages."""
        return [type(effect) for effect in self.effects if not isinstance(effect, protocol.Send)]

    def outcomes(self):
        return [effect.outcome for effect in self.effects if isinstance(effect, protocol.Ended)]

    def values(self):
        return [core.model.value for core in self.cores]


@pytest.fixture
def pair():
    """0 at 0.0 and 1 at 4.0, linked; the link is no longer new."""
    talkers = Talkers(0.0, 4.0)
    talkers.link(0, 1)
    for i in (0, 1):
        talkers.cores[i].links[1 - i].new = False
    return talkers


def to_ready(pair):
    """0 offered and decides; 1 has kept the step and said so."""
    pair.do(0, FIRES)
    pair.deliver(protocol.Offer, to=1)
    pair.deliver(protocol.Accept, to=0)
    pair.deliver(protocol.Body, to=1)
    assert pair.cores[1].links[0].exchange.in_doubt


def test_an_exchange_from_offer_to_acknowledgement(pair):
    pair.do(0, FIRES)
    assert pair.done() == [protocol.Fired, protocol.Keep]
    assert pair.mail == [(0, 1, protocol.Offer((0, 0, 1), 0.5, 0))]
    pair.deliver(protocol.Offer, to=1)
    assert pair.kinds() == [protocol.Accept, protocol.Body]
    pair.deliver(protocol.Accept, to=0)
    assert pair.kinds() == [protocol.Body, protocol.Body]
    pair.deliver(protocol.Body, to=0)
    assert pair.effects == []
    pair.deliver(protocol.Body, to=1)
    assert pair.effects == [protocol.Keep("ready"), protocol.Send(0, protocol.Ready((1, 0, 1), (0, 0, 1)))]
    pair.deliver(protocol.Ready, to=0)
    assert [type(effect) for effect in pair.effects] == [protocol.Keep, protocol.Send, protocol.Ended]
    assert pair.outcomes() == ["committed"]
    pair.deliver(protocol.Commit, to=1)
    assert [type(effect) for effect in pair.effects] == [protocol.Keep, protocol.Send, protocol.Ended]
    assert not pair.cores[0].is_idle
    pair.deliver(protocol.Acknowledge, to=0)
    assert pair.cores[0].is_idle
    assert pair.values() == [0.0, 4.0]
    pair.step(0)
    pair.step(1)
    assert pair.values() == [2.0, 2.0]
    assert pair.cores[1].last_broadcast.value == 4.0  # answering leaves it alone


def test_crossed_offers_are_one_exchange_and_the_lower_number_decides(pair):
    pair.do(1, FIRES)
    pair.do(0, FIRES)
    pair.deliver(protocol.Offer, to=0)
    pair.deliver(protocol.Offer, to=1)
    assert pair.kinds() == [protocol.Body, protocol.Body]
    exchanges = [core.links[1 - core.number].exchange for core in pair.cores]
    assert [exchange.decides for exchange in exchanges] == [True, False]
    pair.deliver_all()
    assert [len(core.steps) for core in pair.cores] == [1, 1]
    assert all(core.is_idle for core in pair.cores)


def test_what_is_in_flight_is_set_aside():
    """With half of w_0 = 0 promised to 1, 0 offers (w_0 - 0 / 2) / (1 - 1 / 2), and a quarter of itself."""
    talkers = Talkers(0.0, 4.0, 8.0)
    talkers.link(0, 1)
    talkers.do(0, FIRES)
    talkers.deliver(protocol.Offer, to=1)
    talkers.deliver(protocol.Accept, to=0)
    talkers.do(0, protocol.Stepped(Weights(1.0), 0))
    talkers.link(0, 2)
    talkers.do(0, DOES_NOT)
    offer = talkers.deliver(protocol.Offer, to=2)
    assert offer.share == 0.25
    talkers.deliver(protocol.Accept, to=0)
    assert talkers.deliver(protocol.Body, to=2).model.value == 2.0


def test_only_the_other_end_can_acknowledge(pair):
    to_ready(pair)
    pair.deliver(protocol.Body, to=0)
    pair.deliver(protocol.Ready, to=0)
    (token,) = pair.cores[0].unacknowledged
    pair.do(0, protocol.LinkUp(5))
    pair.do(0, protocol.Received(5, protocol.Acknowledge(token)))
    assert token in pair.cores[0].unacknowledged
    pair.do(0, protocol.Received(1, protocol.Acknowledge(token)))
    assert not pair.cores[0].unacknowledged


# Devices that do not return


def test_a_doubt_is_given_up_for_a_device_that_never_returns(pair):
    to_ready(pair)
    pair.do(1, protocol.LinkDown(0))
    pair.do(1, protocol.GiveUp(0))
    assert pair.outcomes() == ["unresolved"]
    assert pair.done() == [protocol.Ended, protocol.Keep]
    assert pair.cores[1].is_idle
    pair.do(1, DOES_NOT)
    assert pair.cores[1].free == 1.0


# Finished, leaving, new


def newcomer(*values):
    talkers = Talkers(*values, 0.0)
    last = len(values)
    talkers.cores[last] = Device(last, 0, None, None, waits_for_model=True)
    return talkers


def test_a_newcomer_copies_its_first_neighbour():
    talkers = newcomer(4.0)
    talkers.cores[0].k = 7
    talkers.link(0, 1)
    assert talkers.mail == [(1, 0, protocol.ModelRequest())]
    talkers.deliver(protocol.ModelRequest, to=0)
    talkers.deliver(protocol.ModelReply, to=1)
    assert talkers.done() == [protocol.Keep, protocol.Copied]
    assert (talkers.cores[1].k, talkers.cores[1].model.value) == (7, 4.0)
    talkers.do(1, DOES_NOT)
    talkers.deliver_all()
    assert [len(core.steps) for core in talkers.cores] == [1, 1]


def test_a_newcomer_among_newcomers_starts_from_its_own_model():
    talkers = newcomer(4.0, 0.0)
    for i, value in ((1, 5.0), (2, 6.0)):
        talkers.cores[i] = Device(i, 0, Weights(value), Weights(value), waits_for_model=True)
    talkers.link(1, 2)
    talkers.deliver_all()
    assert [core.waits_for_model for core in talkers.cores] == [False, False, False]
    assert {core.model.value for core in talkers.cores[1:]} <= {5.0, 6.0}


# Bodies that fit nothing


@pytest.mark.parametrize("message", [
    protocol.Refuse((0, 0, 9)),
    protocol.Withdraw((1, 0, 9), (0, 0, 9)),
    protocol.Withdraw((1, 0, 9), None),
    protocol.Acknowledge((0, 0, 9)),
    protocol.ModelReply(3, Weights(9.0)),
])  # fmt: skip
def test_messages_of_no_exchange_change_nothing(pair, message):
    before = repr(pair.cores[0])
    pair.do(0, protocol.Received(1, message))
    assert (pair.effects, repr(pair.cores[0])) == ([], before)


def test_a_model_for_no_exchange_is_answered_by_withdrawing_it(pair):
    before = repr(pair.cores[0])
    pair.do(0, protocol.Received(1, protocol.Body((1, 0, 9), (0, 0, 9), Weights(9.0))))
    assert pair.effects == [protocol.Send(1, protocol.Withdraw((0, 0, 9), (1, 0, 9)))]
    assert repr(pair.cores[0]) == before


def test_messages_from_beyond_a_cut_are_not_heard(pair):
    pair.do(0, protocol.LinkDown(1))
    pair.do(0, protocol.Received(1, protocol.Offer((1, 0, 1), 0.5, 0)))
    pair.do(0, protocol.NoProgress(1))
    pair.do(0, protocol.LinkDown(1))
    pair.do(0, protocol.GiveUp(1))
    assert pair.mail == []


def test_a_link_that_comes_up_twice_counts_once(pair):
    pair.do(0, protocol.LinkUp(1))
    assert pair.cores[0].degree == 1


def test_a_step_that_is_committed_while_a_model_is_made_is_not_lost():
    """A driver that computes w_0(k+1) outside of the core may hear of a commit meanwhile."""
    talkers = Talkers(0.0, 4.0)
    talkers.link(0, 1)
    talkers.do(0, FIRES)
    before = len(talkers.cores[0].steps)
    talkers.deliver_all()
    assert len(talkers.cores[0].steps) == before + 1
    talkers.do(0, protocol.Stepped(Weights(1.0), before))
    assert [step.neighbour for step in talkers.cores[0].steps] == [1]
