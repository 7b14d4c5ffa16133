"""The device core's hostile schedules, with every message going through the bytes of the wire.

EFHC_SCHEDULES says how many; `make fuzz` runs 10,000.
"""

from __future__ import annotations

import os

import hostile
import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from witness import Weights

from efhc.core.protocol import Offer
from efhc.runtime.decoder import Decoder, Progress
from efhc.runtime.messages import model_in
from efhc.runtime.wire import ModelFormat, encode_whole

SCHEDULES = int(os.environ.get("EFHC_SCHEDULES", "200"))
MODELS = ModelFormat(1, "float64")


def through_wire(message):
    """The same message after the wire. What the witness wrote on a model is put on the one that arrived."""
    model = model_in(message)
    if model is not None:
        message = message._replace(model=np.array([model.value]))
    decoder = Decoder(MODELS)
    decoder.greeted = True
    (arrived,) = [each for each in decoder.feed(encode_whole(message, 1, MODELS)) if not isinstance(each, Progress)]
    if model is not None:
        (value,) = arrived.model.tolist()
        arrived = arrived._replace(model=Weights(value, model.start, model.gradient, model.applied, talk=model.talk))
    return arrived


class Wired(hostile.Network):
    """A hostile network that carries bytes."""

    carried = 0

    def deliver(self, link, place=0):
        connection, message = self.mail[link][place]
        arrived = through_wire(message)
        assert type(arrived) is type(message)
        self.mail[link][place] = connection, arrived
        Wired.carried += 1
        super().deliver(link, place)


@settings(max_examples=SCHEDULES, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.integers(0, 2**32 - 1))
def test_no_schedule_breaks_a_law_through_the_wire(schedule):
    network = Wired(schedule)
    network.run(network.random.choice((30, 100, 200)))
    network.come_to_rest()


def test_messages_really_go_through_the_wire():
    Wired.carried = 0
    for schedule in range(10):
        network = Wired(schedule)
        network.run(200)
        network.come_to_rest()
    assert Wired.carried > 1000
    assert through_wire(Offer((1, 2, 3), 0.5, 4)) == Offer((1, 2, 3), 0.5, 4)
