"""Groups of commands of which one may be left out: `efhc theory RUN_DIR` is `efhc theory check RUN_DIR`."""

from __future__ import annotations

from typing import Any, ClassVar

from typer.core import TyperGroup


class DefaultCommandGroup(TyperGroup):
    """A group in which a first word that is no command belongs to the default command."""

    default: ClassVar[str]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        word = next((arg for arg in args if not arg.startswith("-")), None)
        if word is not None and word in self.commands:
            args.remove(word)  # options may stand before it
            args = [word, *args]
        elif word is not None:
            args = [self.default, *args]
        return super().parse_args(ctx, args)
