"""Docstrings as pages: examples (`>>>`) become code, which Markdown would take for quotations."""

from __future__ import annotations

from typing import Any

import griffe


def fenced(text: str) -> str:
    """A docstring with each example, with what it prints, in a block of code."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.lstrip().startswith(">>>"):
            lines.extend(["", "```pycon"])
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line.strip() if inside and line.lstrip().startswith(">>>") else line)
    return "\n".join([*lines, "```"] if inside else lines)


class Examples(griffe.Extension):
    """Change the docstring of each object as it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of one object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
