"""What a figure's file changes in its own experiment: for --quick, or for one of several settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Size = Literal["quick", "full"]


def merged(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `tables` with `changes`, merged table by table. A table of another `kind` replaces the old one."""
    result = dict(tables)
    for key, change in changes.items():
        before = result.get(key)
        both = isinstance(before, Mapping) and isinstance(change, Mapping)
        if both and change.get("kind", before.get("kind")) == before.get("kind"):  # type: ignore[union-attr]
            result[key] = merged(before, change)  # type: ignore[arg-type]
        else:
            result[key] = change
    return result
