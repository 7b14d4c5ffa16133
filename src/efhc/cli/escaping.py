"""Texts that came from outside, such as names, paths and errors of others, made safe to print."""

from __future__ import annotations

import shutil
import sys
import textwrap
import unicodedata

from rich.markup import escape


def plain(text: object) -> str:
    r"""Return `text` with every control character spelled out: a terminal shows \x1b[2J and does not obey it."""
    return "".join(_spelled(character) for character in str(text))


def cell(text: object) -> str:
    """Return `text` for a table or message of rich: no control characters, and [brackets] are not markup."""
    return escape(plain(text))


def _spelled(character: str) -> str:
    # Cc: control characters. Cf: invisible ones, such as those that turn the direction of writing around.
    if character in "\t\n" or unicodedata.category(character) not in ("Cc", "Cf"):
        return character
    return character.encode("unicode_escape").decode()


def print_error(text: object) -> None:
    """Print one line to stderr; at a terminal, a long one is broken between words."""
    line = f"efhc: {' '.join(plain(text).split())}"
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    print(line, file=sys.stderr)
