"""An error is one line that no quoted text can use to steer a terminal."""

import pytest

from efhc.base.errors import EfhcError, InputError, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("naïve, 数据, ω̄, 👩\u200d🔬", "naïve, 数据, ω̄, 👩\u200d🔬"),
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("\x9b2J", r"\x9b2J"),
        ("bell\x07 delete\x7f null\0", r"bell\x07 delete\x7f null\x00"),
        ("name-\udce9", r"name-\xe9"),
        ("lone \ud800", r"lone \ud800"),
        ("gnp.\u202eexe", r"gnp.\u202eexe"),
    ],
)
def test_only_what_could_steer_a_terminal_is_escaped(text: str, shown: str):
    assert printable(text) == shown
    printable(text).encode()


def test_errors_are_one_printable_line():
    assert str(EfhcError("two\nlines \x1b[31mred")) == r"two lines \x1b[31mred"
    error = InputError("path", "bad\x1b]0;title\x07", "good")
    assert str(error) == r"path: got bad\x1b]0;title\x07; allowed: good"
