"""`fedkin new`: write a first file for your own method, scenario or metric, with a test."""

from __future__ import annotations

import ast
import keyword
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from string import Template

from fedkin.errors import ConfigError, nearest
from fedkin.untrusted import escaped

_TEMPLATES = Path(__file__).parent / "templates"

# How to use a part of each kind: a command, its option, and the option's value.
KINDS = {
    "method": ("compare", "--methods", "local,{path}:{part}"),
    "scenario": ("run", "--set", "scenario.name={path}:{part}"),
    "metric": ("run", "--set", "run.metrics={path}:{part}"),
}
_IMPORT = (ast.Import, ast.ImportFrom)


def _words_of(name: str) -> list[str]:
    """Split a name in settings into words; raises ConfigError if it is no valid module name.

    >>> _words_of("my-method")
    ['my', 'method']
    """
    words = re.split("[-_]", name)
    module = "_".join(words)
    usual = all(word.isascii() and word.isalnum() for word in words) and name == name.lower()
    if not usual or not module.isidentifier() or keyword.iskeyword(module):
        raise ConfigError(f"new: {escaped(name, 80)!r}: expected a name in small letters such as my-part")
    return words


def write_new(kind: str, name: str, folder: Path) -> tuple[Path, Path, str]:
    """Write the file of a new part and its test; returns their paths and a command that uses the part.

    name: the part's name in settings, such as "my-method"; the file is my_method.py. Raises ConfigError for a name that
    is no valid module name, for the name of another part or module, and for files that exist.
    """
    if kind not in KINDS:
        raise ConfigError(f"new: no kind {escaped(kind, 40)!r}; {nearest(kind, KINDS)}")
    words = _words_of(name)
    module = "_".join(words)
    part = module if kind == "metric" else "".join(word.capitalize() for word in words)
    names = {"name": name, "module": module, "part": part, "title": " ".join(words).capitalize()}
    texts = {}
    for file, template in ((f"{module}.py", f"{kind}.txt"), (f"test_{module}.py", f"test_{kind}.txt")):
        text = (_TEMPLATES / template).read_text(encoding="utf-8")
        texts[folder / file] = Template(text).substitute(names)
    if existing := [path for path in texts if path.exists()]:
        raise ConfigError(f"new: {existing[0]} exists, and is not written over; choose another name or folder")
    if reason := _why_name_is_taken(kind, name, module, part, list(texts.values())):
        raise ConfigError(f"new: {reason}; choose another name, such as my-{name}")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    path, test = texts
    command, option, value = KINDS[kind]
    return path, test, f"fedkin {command} EXPERIMENT.toml {option} {shlex.quote(value.format(path=path, part=part))}"


def _why_name_is_taken(kind: str, name: str, module: str, part: str, texts: list[str]) -> str:
    """Explain why this name is taken already, so that the file could not be used; empty if it is free."""
    if module in sys.stdlib_module_names or find_spec(module) is not None:
        return f"there is a Python module {module!r} already"
    imports = [node for node in ast.walk(ast.parse("\n".join(texts))) if isinstance(node, _IMPORT)]
    others = [one for node in imports if getattr(node, "module", "") != module for one in node.names]
    if part in {one.asname or one.name for one in others}:
        return f"the file imports {part!r} from elsewhere"
    from fedkin.learning.metrics import metric  # imports torch, which is slow: check for typing errors first
    from fedkin.running.plugins import KINDS as PARTS
    from fedkin.running.plugins import add_installed

    add_installed()
    if name in PARTS[kind].known:
        return f"there is a {kind} {name!r} already"
    if kind == "metric":
        metric(higher=True, name=name)(lambda outputs, targets: None)  # raises if the name is that of a column
    return ""
