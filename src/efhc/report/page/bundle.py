"""Puts the modules of a page into one script, so that a page is one file, or asks for one.

The modules are plain ES modules; each imports only from its neighbours. In the bundle every module is a function that
is called once and returns what it exports. One module is made here: the list of all panels of the page of runs, which
is every file NAME_panel.js.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
IN_SOURCE_ONLY = re.compile(r"^[ \t]*(?://.*\n|/\*\*(?s:.*?)\*/\n|\n)?", re.MULTILINE)
"""Comments on lines of their own, indentation and empty lines, which readers of a page need not load."""
SCRIPTS = files("efhc.report.page").joinpath("scripts")


@cache
def bundle(entry: str) -> str:
    """Return the module `entry` with all modules that it imports, each after those that it needs."""
    parts: dict[str, str] = {}
    _collect(entry, parts)
    return '"use strict";\n' + IN_SOURCE_ONLY.sub("", "".join(parts.values()))


def inside_an_element(code: str) -> str:
    """Return a script or style sheet in which nothing ends the element that it is put into.

    `</script` and `<!--` can only stand in strings and patterns, where a backslash changes nothing.
    """
    return re.sub(r"<(?=/script|/style|!--)", r"<\\", code, flags=re.IGNORECASE)


def _collect(name: str, parts: dict[str, str]) -> None:
    code = _module(name)
    for _, needed in IMPORT.findall(code):
        if needed not in parts:
            _collect(needed, parts)
    exported = ", ".join(name for _, name in EXPORT.findall(code))
    body = EXPORT.sub(r"\1", IMPORT.sub(r"const \1 = \2_module;", code))
    parts[name] = f"const {name}_module = (() => {{\n{body}return {{ {exported} }};\n}})();\n"


def _module(name: str) -> str:
    if name == "panels":
        found = sorted(file.name.removesuffix(".js") for file in SCRIPTS.iterdir() if file.name.endswith("_panel.js"))
        classes = ["".join(word.capitalize() for word in module.split("_")) for module in found]
        imports = [f'import {{ {one} }} from "./{module}.js";\n' for one, module in zip(classes, found, strict=True)]
        return "".join(imports) + f"export const PANELS = [{', '.join(classes)}];\n"
    return SCRIPTS.joinpath(f"{name}.js").read_text("utf-8")
