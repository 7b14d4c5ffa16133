"""Texts that came from outside, such as names, paths and errors of others, made safe to print."""

from __future__ import annotations

import shutil
import sys
import textwrap

from rich.markup import escape

from efhc.base.errors import printable


def plain(text: object) -> str:
    """Return `text` with every control character but line breaks spelled out, so that no terminal obeys it."""
    return "\n".join(printable(line) for line in str(text).split("\n"))


def cell(text: object) -> str:
    """Return `text` for a table or message of rich: no control characters, and [brackets] are not markup."""
    return escape(plain(text))


def print_error(text: object) -> None:
    """Print one line to stderr; at a terminal, a long one is broken between words."""
    line = f"efhc: {' '.join(plain(text).split())}"
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    print(line, file=sys.stderr)
