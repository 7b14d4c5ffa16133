"""The command line in this process: a command takes no longer than what it does."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from efhc import cli
from efhc.cli import terminal


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run `efhc WORDS` in `tmp_path` or in `cwd`, as a shell would; `columns` is the width of the terminal."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(cli, "debugging", False)

    def call(*words: object, cwd: Path | None = None, columns: int = 120) -> Done:
        monkeypatch.chdir(cwd or tmp_path)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(terminal.console, "width", columns)
        monkeypatch.setattr(sys, "argv", ["efhc", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        return Done(end.value.code or 0, *capsys.readouterr())

    return call


@pytest.fixture
def refused(command: Callable[..., Done]) -> Callable[..., str]:
    """The one line that a bad input gets."""

    def call(*words: object, cwd: Path | None = None) -> str:
        done = command(*words, cwd=cwd)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("efhc: ")
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    return call
