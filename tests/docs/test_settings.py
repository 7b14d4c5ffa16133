"""Files that are written from the code are as the code would write them now."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

import efhc

generated = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "docs" / "reference_pages.py")))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (generated.SETTINGS, generated.settings_page),
        (generated.API_PAGE, generated.api_page),
        (generated.KINDS_PAGE, generated.kinds_page),
        (generated.NODE_PAGE, generated.node_page),
        (generated.STUB, generated.stub),
    ],
)
def test_generated_files_are_current(file, text):
    assert file.read_text() == text(), f"run {generated.COMMAND}"


def test_every_public_name_is_on_a_page_of_the_api():
    pages = generated.api_page() + generated.kinds_page()
    assert sorted(re.findall(r"^::: efhc\.(\w+)$", pages, re.MULTILINE)) == efhc.__all__
