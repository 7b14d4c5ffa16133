"""Placeholders for parts of an experiment that are not available. They can be read and written, and refuse to run."""

from __future__ import annotations

from typing import Any, Literal

from efhc.base.errors import EfhcError
from efhc.base.policy import Policy

NOT_KEPT = "not-kept"


class Placeholder(Policy):
    """Has every method that a part may have, and each raises `EfhcError`."""

    def why(self) -> str:
        """Return why the part is not available, and what to do."""
        raise NotImplementedError

    def refuse(self, *_args: Any, **_named: Any) -> Any:
        """Raise `EfhcError`, in place of every method."""
        raise EfhcError(self.why())


METHODS = (
    *("thresholds", "over_time", "graph", "draw", "load", "split", "models", "__call__"),
    *("parameters", "initial", "loss_and_gradient"),
    *("transfers", "events", "open"),
)
for _method in METHODS:
    setattr(Placeholder, _method, Placeholder.refuse)


class NotKept(Placeholder):
    """Stands for a part that was made in Python, in the config of a result that was saved without it."""

    kind: Literal["not-kept"] = "not-kept"
    description: str
    """What the part was."""

    def why(self) -> str:
        return f"this part was not kept: {self.description}; make the experiment in Python again to run it"


class NotRun(Placeholder):
    """Stands for a part of the user's own code, in an experiment that was built without running any code."""

    kind: str
    """The reference to the code."""
    arguments: dict[str, Any]
    """The parameters beside it."""

    def why(self) -> str:
        return f"the code of {self.kind} was not run; load the config with its code to run the experiment"
