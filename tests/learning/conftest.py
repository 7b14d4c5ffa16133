"""Fashion-MNIST as it is found on this machine. With EFHC_REQUIRE_DATA set, a machine without it fails."""

import os
from pathlib import Path

import pytest

from efhc.learning.data.fashion_mnist import ARCHIVE


@pytest.fixture(scope="session")
def fashion_files() -> Path:
    """The folder with the four real files."""
    found = ARCHIVE.find()
    if found is None:
        reason = f"Fashion-MNIST is not on this machine: install Debian's package {ARCHIVE.system_package}"
        if os.environ.get("EFHC_REQUIRE_DATA"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found[1]
