"""The command line in this process, as the tests of the commands have it."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_found = spec_from_file_location("commands_in_this_process", Path(__file__).parents[1] / "cli" / "conftest.py")
assert _found is not None
assert _found.loader is not None
_commands = module_from_spec(_found)
_found.loader.exec_module(_commands)
command, refused = _commands.command, _commands.refused
