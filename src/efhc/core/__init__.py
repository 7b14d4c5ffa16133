"""The laws of an iteration, the paper's and half-steps, as pure functions and small frozen policies.

No I/O, no clock, no global randomness, nothing compiled, no threads. Functions on arrays of all devices do not change
their arguments unless they say so; `HalfSteps` is changed by its methods, and `Device` by `device.react`. Besides
NumPy, SciPy, pydantic and `efhc.base` nothing is imported from outside this folder: `lint-imports` checks that.

Three files to read first:

    reference.py   Alg. 1 of the paper in plain loops
    parts.py       the form of a strategy: what it sees, what it returns, and what it is made of
    law.py         one iteration of that form, by each of the three link laws

and then what they rest on:

    half_steps.py  a link whose messages may be late or lost: the sender of a message decides alone. Its messages and
                   effects are in half_step_messages.py; uplink.py and step_limits.py say when, how much and how far
    device.py      the same for the paper's exchange: both ends make a step, or neither does. Its messages, events and
                   effects are in protocol.py
    local_steps.py SGD, momentum, Adam and drift correction: one row per device
    iteration.py   the four events of Alg. 1, all devices at once: law.py's case that needs no other parts
    state.py       what the next iteration needs; memory.py: the arrays that a strategy remembers
    triggers.py    who fires: EF-HC, GT, ZT, RG, never
    mixing.py      the mixing matrix
    arithmetic.py  the passes over the models that an iteration consists of
    cost.py        transmission time
    schedules.py   alpha(k), gamma(k)
    graph.py       the physical network at one iteration
    randomness.py  one seed, one stream per purpose and device
"""
