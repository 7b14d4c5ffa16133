"""What strategies of the user's own return, checked. Compiled loops and checkpoints count on shapes and types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.errors import InputError
from efhc.base.own_code import is_built_in, quoting
from efhc.core.arithmetic import MOST_BITS, finite_rows
from efhc.core.graph import Graph
from efhc.core.memory import Memories
from efhc.core.parts import ChosenLinks, LinkChoice, Moved, Now
from efhc.core.state import Diverged


class ResultChecks:
    """Raises an `InputError` that names the strategy, the iteration and, where there is one, the device."""

    def __init__(self, strategy: Any) -> None:
        self.name = f"strategy {getattr(strategy, 'kind', type(strategy).__name__)}"
        self._is_built_in = is_built_in(strategy)

    def flags(self, given: Any, what: str, devices: int, k: int) -> Flags:
        """Return one bool per device."""
        flags = np.asarray(given)
        if flags.shape != (devices,) or flags.dtype != bool:
            allowed = f"bool of shape ({devices},), one per device"
            raise InputError(self.name, f"{what} {flags.dtype} of shape {flags.shape} at k = {k}", allowed)
        return flags

    def moved(self, given: Any, models: Floats, k: int) -> Moved:
        """Return what `step` returned; the models are finite and like those of iteration k."""
        if not isinstance(given, Moved):
            raise InputError(self.name, f"a {type(given).__name__} from step at k = {k}", "an efhc.Moved")
        moved = np.asarray(given.models)
        if moved.shape != models.shape or moved.dtype.kind != "f":
            what = f"models that are {moved.dtype} of shape {moved.shape} at k = {k}"
            raise InputError(self.name, what, f"{models.dtype} of shape {models.shape}")
        if not (finite := finite_rows(moved)).all():
            if self._is_built_in or not np.isnan(moved).any():
                raise Diverged(k, "model", finite)
            device = int(np.flatnonzero(np.isnan(moved).any(axis=1))[0])
            raise InputError(self.name, f"NaN in the model of device {device} at k = {k}", "finite numbers")
        return given._replace(models=moved)

    def bits(self, moved: Moved, graph: Graph, k: int) -> Ints:
        """Return the bits that `step` says it sent, per directed link."""
        bits, sender = np.asarray(moved.bits), graph.directed.sender
        count = graph.devices if moved.per == "device" else len(sender) if moved.per == "link" else None
        if bits.dtype.kind not in "iuf" or bits.shape != (count,):
            what = f"bits that are {bits.dtype} of shape {bits.shape} with per = {moved.per!r} at k = {k}"
            allowed = f"numbers of shape ({graph.devices},) with per = 'device', or ({len(sender)},) with per = 'link'"
            raise InputError(self.name, what, allowed)
        if not ((bits >= 0) & (bits < MOST_BITS)).all():
            raise InputError(self.name, f"bits from {bits.min()} to {bits.max()} at k = {k}", "numbers from 0 to 2^62")
        per_link: Ints = np.ceil(bits if moved.per == "link" else bits[sender]).astype(np.int64)
        return per_link

    def memory(
        self, given: Mapping[str, Any], before: Mapping[str, np.ndarray], memories: Memories, k: int
    ) -> dict[str, np.ndarray]:
        """Return what is remembered after iteration k, in arrays of its own. `before` has what was remembered."""
        if given.keys() != before.keys():
            what = f"memory named {', '.join(sorted(given)) or '(nothing)'} at k = {k}"
            raise InputError(self.name, what, f"memory named {', '.join(sorted(before)) or '(nothing)'}")
        kept = {}
        for name, old in before.items():
            array = np.asarray(given[name])
            if array.shape != old.shape or array.dtype != old.dtype:
                what = f"memory {name} that is {array.dtype} of shape {array.shape} at k = {k}"
                raise InputError(self.name, what, f"{old.dtype} of shape {old.shape}")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                where = "" if memories[name].per == "run" else f" of {memories[name].per} {_first_bad_row(array)}"
                raise InputError(self.name, f"NaN or infinity in memory {name}{where} at k = {k}", "finite numbers")
            kept[name] = array.copy()  # it may be a view of models or gradients, whose memory is used again
        return kept


def _first_bad_row(array: np.ndarray) -> int:
    return int(np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))[0])


class CheckedLinks:
    """A choice of links of the user's own, which is checked."""

    def __init__(self, links: LinkChoice) -> None:
        self._links, self._name = links, f"links {getattr(links, 'kind', type(links).__name__)}"

    @property
    def is_fixed(self) -> bool:
        """Whether the links of a graph that stays the same stay the same too."""
        return bool(getattr(self._links, "is_fixed", False))

    def choose(self, now: Now) -> ChosenLinks:
        with quoting(self._links, self._name):
            active, weights = self._links.choose(now)
        count = len(now.graph.links)
        active = np.asarray(active)
        if active.shape != (count,) or active.dtype != bool:
            what = f"{active.dtype} of shape {active.shape} at k = {now.k}"
            raise InputError(self._name, what, f"bool of shape ({count},), one per link")
        if weights is None:
            return ChosenLinks(active)
        weights = np.asarray(weights, dtype=np.float64)
        if weights.shape != (count,) or not ((weights >= 0) & (weights <= 1)).all():
            what = f"weights of shape {weights.shape} at k = {now.k}"
            raise InputError(self._name, what, f"numbers from 0 to 1 of shape ({count},), one per link")
        return ChosenLinks(active, weights)
