"""What a user can mend. The text of an `EfhcError` is the one line they see; anything else is a bug of ours."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LONGEST = 300
"""Characters of what was given that an error repeats."""


class EfhcError(Exception):
    """A problem that its one line explains, whatever it quotes from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


class InputError(EfhcError):
    """A value that cannot be used: which field, what was given, what is allowed."""

    def __init__(self, field: str, given: object, allowed: str) -> None:
        text = str(given)
        shown = text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
        super().__init__(f"{field}: got {shown}; allowed: {allowed}")
        self.field, self.given, self.allowed = field, given, allowed


class Unusable(ValueError):
    """The same while pydantic validates a config: it knows the place of the field, and `problems` adds it."""

    def __init__(self, field: str, given: object, allowed: str) -> None:
        super().__init__(allowed)
        self.field, self.given, self.allowed = field, given, allowed


class AssumptionBroken(EfhcError):
    """A run that was to stop where it breaks an assumption of the theory did; its state is kept."""


@contextmanager
def within(table: str) -> Iterator[None]:
    """Name the config table in whose service the body runs: `radius` becomes `network.radius`."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{table}.{error.field}", error.given, error.allowed) from error
    except MemoryError as error:
        raise InputError(table, "a size for which this machine has too little memory", "smaller sizes") from error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`, did you mean 'radius'?` where a known word is close, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f", did you mean '{close[0]}'?" if close else ""
