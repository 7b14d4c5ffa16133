"""Files that are written from the code are as the code would write them now."""

from __future__ import annotations

import pytest

from efhc.experiments.config import generated


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (generated.SETTINGS, generated.settings_page),
        (generated.NODE_PAGE, generated.node_page),
        (generated.STUB, generated.stub),
    ],
)
def test_generated_files_are_current(file, text):
    assert file.read_text() == text(), f"run {generated.COMMAND}"
