"""The paper: four events and one iteration, as pure functions and small frozen policies.

No I/O, no clock, no global randomness, nothing compiled, no threads; functions do not change their arguments. Besides
NumPy, SciPy, pydantic and `efhc.base` nothing is imported from outside this folder. `lint-imports` checks that neither
other parts of efhc nor anything compiled or threaded is.

    iteration.py   the four events of Alg. 1, all devices at once
    reference.py   the same in plain loops
    triggers.py    who fires: EF-HC, GT, ZT, RG, never
    mixing.py      the mixing matrix
    arithmetic.py  the passes over the models that an iteration consists of
    cost.py        transmission time
    schedules.py   alpha(k), gamma(k)
    graph.py       the physical network at one iteration
    randomness.py  one seed, one stream per purpose and device
"""
