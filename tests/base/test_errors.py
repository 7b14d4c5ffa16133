"""An error is one line that no quoted text can use to steer a terminal."""

from pathlib import Path

import pytest

import efhc
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
    assert str(error) == r"path: cannot use bad\x1b]0;title\x07. Use good."


def test_a_notebook_shows_the_users_own_calls_and_the_line_names_the_last(tmp_path: Path):
    (tmp_path / "typo.py").write_text(
        "import efhc\n\n\nclass Typo(efhc.Strategy):\n"
        "    def fires(self, seen, memory):\n        return seen.dirft > 1\n"
    )
    strategy = {"kind": f"{tmp_path}/typo.py:Typo"}
    with pytest.raises(efhc.InputError, match=r"^typo, seed 0: your strategy Typo raised .* at typo\.py:6: ") as caught:
        efhc.simulate(iterations=5, seeds=0, strategies={"typo": strategy})
    assert "--debug" not in str(caught.value)
    first, call, said, line = caught.value._render_traceback_()
    assert first.startswith("Traceback")
    assert 'typo.py", line 6, in fires\n    return seen.dirft > 1' in call
    assert said.startswith("AttributeError: ")
    assert line == f"InputError: {caught.value}"
    with pytest.raises(efhc.InputError) as refused:
        efhc.simulate(devices=0)
    assert refused.value._render_traceback_() == [f"InputError: {refused.value}"]
