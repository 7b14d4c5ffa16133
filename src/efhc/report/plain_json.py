"""JSON for pages, whatever was in the files of a run."""

from __future__ import annotations

import json
import math
from typing import Any


def to_json(data: Any) -> str:
    """Return JSON without blanks: null for a number that JSON does not have, "?" for half of a surrogate pair."""
    try:
        text = _dumped(data)
    except ValueError:
        text = _dumped(_finite(data))
    return text.encode("utf-8", "replace").decode()


def _dumped(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
