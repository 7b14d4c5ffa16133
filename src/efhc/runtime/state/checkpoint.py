"""The file `checkpoint.safetensors`: tensors, and facts about them as JSON in its header."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from efhc.base.saving import write_tensors

FORMAT = 1
_FACTS, _CHECKSUM = "efhc", "efhc_sha256"
_LONGEST_HEADER = 1 << 26


def write_checkpoint(path: Path, tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write a checkpoint whole, or leave the one that is there. Raises `SaveError` if it cannot be written."""
    shapes = {name: [array.dtype.name, array.shape] for name, array in tensors.items()}
    text = json.dumps({"format": FORMAT, "shapes": shapes, **facts})
    write_tensors(path, tensors, {_FACTS: text, _CHECKSUM: _sha256(text)})


def read_checkpoint(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return tensors and facts. Each array is read into its own memory: nothing is held twice.

    Raises `ValueError` if the file is damaged, `OSError` if it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= _LONGEST_HEADER:
            raise ValueError("it has no header")
        try:
            metadata = json.loads(file.read(length))["__metadata__"]
            text, checksum, expected = metadata[_FACTS], metadata[_CHECKSUM], metadata["sha256"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError("its header is damaged") from error
        if _sha256(text) != checksum:
            raise ValueError("its header is not the one that was written")
        facts = json.loads(text)
        if facts["format"] != FORMAT:
            raise ValueError(f"it has format {facts['format']}, and this version of efhc reads format {FORMAT}")
        tensors = {}
        for name, (dtype, shape) in facts["shapes"].items():
            tensors[name] = np.empty(shape, dtype)
            numbers = tensors[name].reshape(-1).view(np.uint8).data
            if file.readinto(numbers) != numbers.nbytes:
                raise ValueError("it does not have its whole length")
            digest.update(numbers)
    if digest.hexdigest() != expected:
        raise ValueError("its numbers are not those that were written")
    return tensors, facts


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
