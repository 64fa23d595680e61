"""A terminal for whole commands."""

from __future__ import annotations

import pytest

from cli.invoked import Terminal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(monkeypatch, capsys)
