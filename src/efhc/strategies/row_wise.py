"""Whether a local step of the user's own looks at other devices.

With its rows permuted, and with each row alone, it must return the same.
"""

from __future__ import annotations

import numpy as np

from efhc.base.errors import InputError
from efhc.base.own_code import is_built_in, quoting
from efhc.core.local_steps import LocalStep, Moment, Rows

DEVICES, PARAMETERS = 4, 12


def check_row_wise(local: LocalStep, where: str) -> None:
    """Raise `InputError` if a local step returns something else for a device when the others stand elsewhere.

    What it remembers must be named in `memory`, each an array like the models.
    """
    if is_built_in(local):
        return
    rng, order = np.random.default_rng(0), np.array([2, 0, 3, 1])
    names = ("model", *(["correction"] if local.correction else []), *local.memory)
    rows = {name: rng.normal(size=(DEVICES, PARAMETERS)).astype(np.float32) for name in names}
    gradient, ones = rng.normal(size=(DEVICES, PARAMETERS)).astype(np.float32), np.ones((DEVICES, 1))
    pull = rng.normal(size=(DEVICES, PARAMETERS)).astype(np.float32)
    learned = pull if local.correction else None
    alpha = (0.1 * ones).astype(np.float32)

    def both(which: np.ndarray) -> Rows:
        """Return the rows after a local step and what links add, where the devices stand in this order."""
        moment = Moment(alpha[which], np.arange(1, DEVICES + 1)[which], ones[which])
        after = local.local({name: array[which] for name, array in rows.items()}, gradient[which], moment)
        return local.pulled(after, pull[which], None if learned is None else learned[which], alpha[which])

    with quoting(local, where):
        found, again = both(np.arange(DEVICES)), both(order)
        alone = [both(np.array([device])) for device in range(DEVICES)]
    if found.keys() != rows.keys():
        given = f"a local step that remembers {', '.join(sorted(found.keys() - {'model', 'correction'})) or 'nothing'}"
        raise InputError(where, given, f"what its `memory` names: {', '.join(local.memory) or 'nothing'}")
    for name, array in found.items():
        if np.shape(array) != (DEVICES, PARAMETERS):
            raise InputError(where, f"{name} of shape {np.shape(array)}", f"one row per device, ({DEVICES}, n)")
        if np.asarray(array).dtype != np.float32:
            raise InputError(where, f"{name} in {np.asarray(array).dtype}", "the precision of the models")
        is_same = np.array_equal(np.asarray(array)[order], again[name], equal_nan=True)
        alike = np.allclose(array, np.concatenate([rows[name] for rows in alone]), rtol=1e-4, atol=1e-5, equal_nan=True)
        if not is_same or not alike:
            given = f"a local step whose {name} of a device depends on the rows of other devices"
            raise InputError(where, given, "a function of each device's own row")
