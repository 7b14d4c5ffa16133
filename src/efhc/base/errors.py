"""Errors that a user can fix. The text of an `EfhcError` is the one line they see; other errors are bugs of efhc."""

from __future__ import annotations

import copyreg
import difflib
import traceback
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

LONGEST = 300
"""The largest number of characters of a given value that an error repeats."""

HIDDEN = {"Cc", "Cs"}
"""Unicode categories that a terminal must not receive: control characters, and bytes of names that are not UTF-8."""

REORDERING = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of the text around them."""


def printable(text: str) -> str:
    r"""`text` with every character that could steer a terminal replaced by its escape, such as `\x1b`.

    Use it for whatever comes from elsewhere: file names, messages of a server, names in a config.
    """
    if text.isprintable():
        return text
    return "".join(_escaped(c) if c in REORDERING or unicodedata.category(c) in HIDDEN else c for c in text)


def _escaped(character: str) -> str:
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # how Python keeps a byte of a file name that is not UTF-8
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


PACKAGE = Path(__file__).parents[1]


def calls_outside(error: BaseException) -> traceback.StackSummary:
    """Return the calls that led to an error, without those within efhc."""
    calls = traceback.extract_tb(error.__traceback__)
    return traceback.StackSummary.from_list(
        [call for call in calls if not Path(call.filename).is_relative_to(PACKAGE) and call.filename[:1] != "<"]
    )


class EfhcError(Exception):
    """A problem that its one line explains. The line holds no control characters, whatever it quotes."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(" ".join(text.split())))

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the line, for the calls within efhc say nothing more.

        If code of the user's own failed, the calls within that code come before it.
        """
        line = f"{type(self).__name__}: {self}"
        cause = self.__cause__
        while isinstance(cause, EfhcError):
            cause = cause.__cause__
        calls = [] if cause is None else calls_outside(cause)
        if cause is None or not calls:
            return [line]
        *_, said = traceback.format_exception_only(cause)
        return ["Traceback (most recent call last):", *traceback.format_list(calls), said, line]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the text and the attributes: subclasses have arguments of their own. An attribute becomes a text
        unless it is plain, for other machines may not have what it is made of.
        """
        facts = {name: fact if isinstance(fact, str | int | None) else str(fact) for name, fact in vars(self).items()}
        return copyreg.__newobj__, (type(self), str(self)), facts  # type: ignore[attr-defined]

    cannot_clean_up = False
    """Whether a process that ends as usual would wait for something that never comes."""

    def about(self, whose: str) -> Self:
        """Return the same error, with the name of the run in which it was raised in front."""
        named = type(self).__new__(type(self), f"{whose}: {self}")
        vars(named).update(vars(self))
        named.__cause__ = self
        return named


class InputError(EfhcError):
    """A value that cannot be used: which field, what was given, what is allowed.

    It reads `step_size: cannot use -1. Use a number above 0.`, so `given` and `allowed` are nouns. Where that does not
    read well, `problem` is the whole text after the field, or the whole text if it begins with "your" and the field.
    """

    def __init__(self, field: str, given: object, allowed: str, problem: str | None = None) -> None:
        self.field, self.given, self.allowed, self.problem = field, given, allowed, problem
        text = str(given)
        shown = text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
        what = "a value is missing" if shown in ("nothing", "none") else f"cannot use {shown}"
        line = problem or f"{what}. Use {allowed}."
        super().__init__(line if line.startswith(f"your {field} ") else f"{field}: {line}")

    def renamed(self, field: str) -> InputError:
        """Return the same error for a field of another name."""
        return InputError(field, self.given, self.allowed, self.problem)


class Unusable(InputError, ValueError):
    """An `InputError` that pydantic collects while it validates a config; `base.policy` completes the field name."""

    @classmethod
    def of(cls, error: InputError) -> Unusable:
        """Return an `InputError` as one that pydantic collects."""
        return cls(error.field, error.given, error.allowed, error.problem)


class AssumptionBroken(EfhcError):
    """Raised when a strict run breaks an assumption of the theory. The state of the run is kept."""


@contextmanager
def within(table: str) -> Iterator[None]:
    """Prefix the field of an `InputError` from the body with its config table: `radius` becomes `network.radius`."""
    try:
        yield
    except InputError as error:
        raise error.renamed(f"{table}.{error.field}") from error
    except MemoryError as error:
        raise InputError(table, "a size for which this machine has too little memory", "smaller sizes") from error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'radius'?)` if a known word is close to `word`, else an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""
