"""docs/data.md works as it is pasted: its Python, its config, and the commands that use it."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

from efhc.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


@pytest.mark.slow
def test_the_page_works_as_pasted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, f"docs/data.md, example {number}", "exec"), {"__name__": "__main__"})
        promised = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
        assert promised
        assert printed.getvalue().splitlines() == promised
    for file, content in re.findall(r"```toml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / file).write_text(content)
    lines = re.findall(r"^efhc ([^#\n]*)", PAGE, re.MULTILINE)
    assert len(lines) >= 2
    for line in lines:
        monkeypatch.setattr(sys, "argv", ["efhc", *line.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, capsys.readouterr().err
    assert (tmp_path / "runs" / "clinics-partition.png").exists()
    assert "Columns without a use (1): remark" in capsys.readouterr().out
