"""Every command and every piece of Python in README.md and on the site runs as it stands there."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from blocks import ALL, PAGES, ROOT, SHELLS, Block, blocks_of
from typer.core import TyperGroup
from typer.main import get_command

from efhc.cli import app

NOT_RUN = 32
"""As many blocks at most are not run by any test."""
YOURS = """
iterations = 20
seeds = [0]
[strategies]
EF-HC = { kind = "ef-hc", r = 1500.0 }
RG = { kind = "rg", probability = 0.3 }
ZT = "zt"
[sweep]
strategies.EF-HC.r = [500.0, 1500.0]
"""
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
ELSEWHERE = ("apt-get", "docker", "pip", "podman", "ray", "scp", "ssh", "sudo", "systemctl")
TAKE_OVERRIDES = ("run", "sweep", "tune", ("data", "show"), ("theory", "plan"))
RUN = [page for page in PAGES if any(block.is_run for block in blocks_of(page))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A reader's folder: a checkout's examples, and FILE.toml, which is the reader's own."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "FILE.toml").write_text(YOURS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("BROWSER", "true")  # the command that succeeds and opens nothing
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:  # another page may have another file of this name
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def data(page: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data sets that the page names; without them the test is skipped, or fails where they are required."""
    code = "".join(block.code for block in blocks_of(page) if block.is_run)
    for word, files in (("fashion-mnist", "fashion_files"), ("femnist", "femnist_files"), ("cifar10", "cifar_files")):
        if word in code:
            found = request.getfixturevalue(files)
            if word != "fashion-mnist":
                monkeypatch.setenv("EFHC_DATA", str(found.parent))


@pytest.mark.slow
@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run_one_after_the_other(page: Path, folder: Path, command: Callable[..., Any]):
    names: dict[str, Any] = {}
    for block in blocks_of(page):
        if block.file:
            (folder / block.file).write_text(block.code)
        if not block.is_run:
            continue
        if block.language == "python":
            names = names if block.mark == "continues" else {"__name__": "__main__"}
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile(block.code, str(block), "exec"), names)
            assert set(re.findall(r"# -> (.*)$", block.code, re.MULTILINE)) <= set(printed.getvalue().splitlines())
        else:
            run_shell(block, folder, command)


def run_shell(block: Block, folder: Path, command: Callable[..., Any]) -> None:
    """Run a block: in this process if it has nothing but commands of efhc, else by a real shell.

    `efhc watch` is started as a process, asked for its page, and stopped. Lines that install an extra are not run; the
    extra must exist.
    """
    lines = [line for line in block.code.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    extras = [found[1] for line in lines if (found := re.match(r"pip install 'efhc\[(\w+)\]'$", line))]
    assert set(extras) <= set(EXTRAS), f"{block}: {extras}"
    elsewhere = [line for line in lines if line.split()[0] in ELSEWHERE]
    assert len(elsewhere) == len(extras), f"{block}: {elsewhere} cannot be run here; say so in the line above the block"
    if len(lines) > len(block.commands) + len(extras):
        run_in_shell(block, folder)
        return
    for line in block.commands:
        name, *words = shlex.split(line, comments=True)[1:]
        if name == "watch":
            see_the_page(words, folder)
            continue
        takes = name in TAKE_OVERRIDES or (name, *words[:1]) in TAKE_OVERRIDES
        more = shlex.split(block.words) if takes else []
        done = command(name, *words, *more, cwd=folder)
        assert done.returncode == 0, f"{block}: {line}\n{done.stderr}"


def run_in_shell(block: Block, folder: Path) -> None:
    ours = f'efhc() {{ "{sys.executable}" -m efhc "$@" {block.words}; }}\npython() {{ "{sys.executable}" "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-euc", ours + block.code], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{block}\n{done.stderr}"


def see_the_page(words: list[str], folder: Path) -> None:
    """Start `efhc watch`, open the address that it prints as a browser on this machine would, and stop it."""
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "efhc", "watch", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as started:
        try:
            said = ""
            while not (found := re.search(r"http://\S+", said)):
                line = started.stdout.readline()
                assert line, f"efhc watch {shlex.join(words)}\n{said}"
                said += line
            port, token = re.search(r":(\d+)/?", found[0])[1], re.search(r"token=([\w-]+)", found[0])
            headers = {"Authorization": f"Bearer {token[1]}"} if token else {}
            with urlopen(Request(f"http://127.0.0.1:{port}/", headers=headers), timeout=30) as answer:
                assert b"<html" in answer.read().lower()
        finally:
            started.terminate()


def test_blocks_that_are_not_run_are_few_and_say_why():
    """`pytest -s` lists them."""
    left_out = [block for block in ALL if block.mark == "not run"]
    print(f"\n{len(left_out)} of {sum(block.language in (*SHELLS, 'python') for block in ALL)} blocks are not run:")  # noqa: T201
    for reason, number in Counter(block.words for block in left_out).most_common():
        print(f"  {number} x {reason}")  # noqa: T201
    assert all(len(block.words.split()) >= 2 for block in left_out)
    assert len(left_out) <= NOT_RUN


def test_blocks_that_another_test_runs_have_that_test():
    for block in ALL:
        if block.mark == "run by":
            test = (ROOT / block.words).read_text()
            assert block.page.name in test or block.page.stem in test, str(block)


def test_every_block_says_its_language():
    for page in PAGES:
        fences = re.findall(r"^```(\w*)$", page.read_text(), re.MULTILINE)
        assert all(fences[::2]), f"{page.name}: a block without a language (text, if it is none)"
        assert not any(fences[1::2]), page.name


LINES = [(block, line) for block in ALL for line in block.commands]


@pytest.mark.parametrize(("block", "line"), LINES, ids=lambda one: str(one)[:60])
def test_command_lines_name_commands_options_and_files_that_exist(block: Block, line: str):
    """Also those that are not run. Files are ours, those of the page (`# own.toml`), or placeholders in capitals."""
    words = shlex.split(line, comments=True)[1:]
    command = get_command(app)
    while isinstance(command, TyperGroup):
        name = next((word for word in words if not word.startswith("-")), "")
        if name not in command.commands:
            command = next(iter(command.commands.values()))  # efhc theory RUN_DIR, efhc node NODE.toml
            break
        command, words = command.commands[name], words[words.index(name) + 1 :]
    assert command.make_context("efhc", list(words), resilient_parsing=False).params is not None
    files = {one.file for one in blocks_of(block.page)}
    for word in words:
        if word.endswith(".toml") and not word.startswith(("runs/", "device-")) and not word.isupper():
            known = (ROOT / word).is_file() or word in files or word.split(".")[0].isupper()
            assert known or block.is_run, f"{block}: {word}"


@pytest.mark.parametrize("block", [block for block in ALL if block.language == "toml"], ids=str)
def test_toml_can_be_read(block: Block):
    assert tomllib.loads(block.code)
