from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    """Write a file and return its path."""

    def put(content: str | bytes) -> Path:
        path = tmp_path / "written.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return put
