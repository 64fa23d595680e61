"""What is printed: texts as they are, never as markup, and without anything that a terminal obeys."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedkin.untrusted import shown

__all__ = ["as_json", "screen"]

# JSON escapes what is below a space itself.
_OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def screen(**options: Any) -> Console:
    """A console for tables and lines of plain text; stderr=True: one whose trouble never ends a command."""
    if options.pop("stderr", False):
        options["file"] = _Unheard(sys.stderr)
    return _Screen(**{"markup": False, "emoji": False, "highlight": False, **options})


def as_json(value: Any) -> str:
    """The value as JSON that a terminal shows and does not obey."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class _Screen(Console):
    """Texts are replaced when they have become segments, so that styles are kept."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for part in super().render(renderable, options):
            if part.control:
                yield part
            else:
                yield Segment("\n".join(map(shown, part.text.split("\n"))), part.style)


class _Unheard:
    """Standard error, whatever becomes of it: progress that cannot be shown is no reason to end a run."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, AttributeError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, AttributeError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
