"""The code blocks of README.md and of every page of the site, with what the page's source says about running them.

A block of sh, bash or Python is run as it stands, unless a comment on the line above its fence says otherwise:

    <!-- ci: not run: REASON -->     it is not run here (no such machine, hours, downloads); its commands are parsed
    <!-- ci: run by FILE -->         a test of its own runs it, because it needs several terminals and the like
    <!-- ci: with WORDS -->          its commands that take settings get these words more, so that they are small
    <!-- ci: continues -->           Python that uses names of the block before it

In Python, `print(...)  # -> TEXT` prints a line TEXT.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARK = re.compile(r"<!-- ci: (not run|run by|with|continues)(?::? (.*?))? -->")
FENCE = re.compile(r"^(?:(<!-- ci: .*? -->)\n)?```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELLS = ("sh", "bash")


@dataclass(frozen=True)
class Block:
    """A code block: where it is, what it is written in, and what the line above it says."""

    page: Path
    line: int
    language: str
    code: str
    mark: str | None
    words: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that the block is the content of, if its first line is a comment with the name of one."""
        found = re.match(r"# ([\w-]+\.(?:py|toml))\n", self.code)
        return found[1] if found else None

    @property
    def commands(self) -> list[str]:
        """The lines that begin with `efhc`, whole ones where a backslash continues them."""
        if self.language not in SHELLS:
            return []
        return [line for line in self.code.replace("\\\n", " ").splitlines() if line.startswith("efhc ")]

    @property
    def is_run(self) -> bool:
        return self.language in (*SHELLS, "python") and self.mark not in ("not run", "run by")


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page that say which language they are in, in order."""
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        said = MARK.fullmatch(match[1]) if match[1] else None
        assert said or not match[1], f"{page.name}: {match[1]}"
        line = text[: match.start(2)].count("\n") + 1
        found.append(Block(page, line, match[2], match[3], said and said[1], (said and said[2]) or ""))
    return found


ALL = [block for page in PAGES for block in blocks_of(page)]
