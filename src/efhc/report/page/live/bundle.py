"""Puts the modules of a page into one script, so that a page is one file, or asks for one.

The modules are plain ES modules that browsers could load as they are; each imports only from its neighbours. In the
bundle every module is a function that is called once and returns what it exports. One module is made from Python: the
look of strategies, which pages share with figures.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files

from efhc.report.looks import KNOWN, OTHERS

IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
FROM_PYTHON = {
    "looks_table": f"export const KNOWN_LOOKS = {json.dumps(KNOWN)};\nexport const OTHERS = {json.dumps(OTHERS)};\n"
}


@cache
def bundle(entry: str) -> str:
    """Return the module `entry` with all that it imports, those first that others need."""
    parts: dict[str, str] = {}
    _collect(entry, parts)
    return '"use strict";\n' + "\n".join(parts.values())


def inside_an_element(code: str) -> str:
    """Return a script or style sheet in which nothing ends the element that it is put into.

    `</script` and `<!--` can only stand in strings and patterns, where a backslash changes nothing.
    """
    return re.sub(r"<(?=/script|/style|!--)", r"<\\", code, flags=re.IGNORECASE)


def _collect(name: str, parts: dict[str, str]) -> None:
    code = FROM_PYTHON.get(name) or files("efhc.report.page.live").joinpath("scripts", f"{name}.js").read_text("utf-8")
    for _, needed in IMPORT.findall(code):
        if needed not in parts:
            _collect(needed, parts)
    exported = ", ".join(name for _, name in EXPORT.findall(code))
    body = EXPORT.sub(r"\1", IMPORT.sub(r"const \1 = \2_module;", code))
    parts[name] = f"const {name}_module = (() => {{\n{body}return {{ {exported} }};\n}})();\n"
