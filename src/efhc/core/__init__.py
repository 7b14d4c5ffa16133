"""The paper: four events and one iteration, as pure functions and small frozen policies.

No I/O, no clock, no global randomness, nothing compiled, no threads. Functions on arrays of all devices do not change
their arguments unless they say so; `Device` and `HalfSteps` are changed by their own methods. Besides NumPy, SciPy,
pydantic and `efhc.base` nothing is imported from outside this folder: `lint-imports` checks that.

Three files to read first:

    reference.py   Alg. 1 of the paper in plain loops
    parts.py       the form of a strategy: what it sees, what it returns, and what it is made of
    law.py         one iteration of that form, by each of the three link laws

and then what they rest on:

    half_steps.py  a link whose messages may be late or lost: the sender of a message decides alone
    device.py      the same for the paper's exchange: both ends make a step, or neither does
    iteration.py   the four events of Alg. 1, all devices at once
    triggers.py    who fires: EF-HC, GT, ZT, RG, never
    mixing.py      the mixing matrix
    arithmetic.py  the passes over the models that an iteration consists of
    cost.py        transmission time
    schedules.py   alpha(k), gamma(k)
    graph.py       the physical network at one iteration
    randomness.py  one seed, one stream per purpose and device
"""
