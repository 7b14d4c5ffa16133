"""Kinds that installed packages add, by entry points of the group `efhc.kinds`; each is a class."""

from __future__ import annotations

import functools
import warnings
from importlib.metadata import entry_points

from efhc.base.policy import Policy

ENTRY_POINTS = "efhc.kinds"


def kind_of(policy: type[Policy]) -> str | None:
    """Return the kind by which configs name a class, or None for a class without one."""
    field = policy.model_fields.get("kind")
    return field.default if field and isinstance(field.default, str) else None


def is_registered(policy: Policy) -> bool:
    """Return whether a policy is of a kind that comes with efhc or with an installed package, not of the user's own."""
    return type(policy).__module__.startswith("efhc.") or type(policy) in installed_kinds()


@functools.cache
def installed_kinds() -> tuple[type[Policy], ...]:
    """Return the classes of all entry points. One that cannot be used is named in a warning."""
    found: list[type[Policy]] = []
    for point in entry_points(group=ENTRY_POINTS):
        try:
            policy = point.load()
        except Exception as error:  # a package that is broken must not break runs that do not need it
            warnings.warn(f"{ENTRY_POINTS}: {point.value} cannot be loaded ({error})", stacklevel=2)
            continue
        if isinstance(policy, type) and issubclass(policy, Policy) and kind_of(policy):
            found.append(policy)
        else:
            warnings.warn(f"{ENTRY_POINTS}: {point.value} is not a Policy with a kind", stacklevel=2)
    return tuple(found)
