"""docs/wire.md has every type of field that docs/wire.json has."""

from __future__ import annotations

import json
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_type_of_field_is_explained():
    table = (DOCS / "wire.md").read_text().split("## Types of fields")[1].split("\n## ")[0]
    types = json.loads((DOCS / "wire.json").read_text())["types"]
    assert re.findall(r"^\| `([\w ]+)` \|", table, re.MULTILINE) == list(types)
