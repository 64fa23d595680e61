"""What mkdocs does for this site beyond mkdocs.yml: pages of the reference, links, checks of the built site.

The reference is read from the sources without importing them, so that the site needs neither torch nor fedkin.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"

# What users import, in the order of the reference. A module of several names has them in its `__all__`.
PUBLIC = (
    "fedkin", "fedkin.flow", "fedkin.forms", "fedkin.views", "fedkin.testing", "fedkin.federation", "fedkin.tasks",
    "fedkin.data", "fedkin.data.scenarios", "fedkin.data.sources", "fedkin.methods", "fedkin.learning",
    "fedkin.learning.models", "fedkin.learning.encoders", "fedkin.graph", "fedkin.analysis", "fedkin.advice",
    "fedkin.report", "fedkin.running.experiment", "fedkin.running.grid",
    "fedkin.running.tune", "fedkin.running.export", "fedkin.running.trackers",
    "fedkin.engines", "fedkin.settings", "fedkin.keys", "fedkin.codec", "fedkin.errors",
)  # fmt: skip
# Parts that are used through commands, files or the names above.
INSIDE = ("__main__", "_version", "cli", "comparing", "folders", "network", "records", "untrusted")


def tree(module: str) -> ast.Module:
    """The syntax tree of a module or package."""
    path = SOURCES.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def names(module: str) -> list[str]:
    """The names in a module's `__all__`."""
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise ValueError(f"{module} has no __all__")


def named(package: str, field: str) -> dict[str, str]:
    """The classes below a package with a name for experiment files: {name: dotted class}."""
    found = {}
    folder = SOURCES.joinpath(*package.split("."))
    for file in sorted(folder.rglob("*.py")):
        module = ".".join(file.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            for line in node.body if isinstance(node, ast.ClassDef) else []:
                if not isinstance(line, ast.Assign | ast.AnnAssign):
                    continue
                target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
                value = line.value
                if getattr(target, "id", "") == field and isinstance(value, ast.Constant) and value.value:
                    found[str(value.value)] = f"{module}.{node.name}"
    return found


def reference() -> dict[str, str]:
    """The pages of the reference: {path below docs: Markdown with a line `::: NAME` for each name}."""
    first = names("fedkin")
    pages = {}
    for module in PUBLIC:
        lines = [f"# {module}", "", (ast.get_docstring(tree(module)) or "").partition("\n")[0], ""]
        for name in names(module):
            if name.startswith("__"):
                lines += [f"`{name}`: the version, a text.", ""]
            elif module != "fedkin" and name in first:
                lines += [f"`{name}`: [fedkin.{name}](fedkin.md#fedkin.{name})", ""]
            else:
                lines += [f"::: {module}.{name}", ""]
        field = {"fedkin.methods": "name", "fedkin.data.scenarios": "name", "fedkin.data.sources": "source"}.get(module)
        for name, place in named(module, field).items() if field else []:
            lines += [f"::: {place}", "    options:", f"      heading: '{name}'", ""]
        pages[f"reference/{module}.md"] = "\n".join(lines)
    index = ["# Reference", "", "Generated from the sources. Commands say what they do with `--help`.", ""]
    index += [f"- [{module}]({module}.md)" for module in PUBLIC]
    return {"reference/index.md": "\n".join(index) + "\n", **pages}


def linked(text: str, page: str) -> str:
    """A page in which names of pages (`docs/graph.md`) outside of code blocks are links."""

    def link(found: re.Match[str]) -> str:
        target = posixpath.relpath(found[1], posixpath.dirname(page) or ".")
        return f"[{posixpath.basename(found[1])}]({target})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(
        part if n % 2 else re.sub(r"(?<!\[)`docs/([\w./-]+\.md)`", link, part) for n, part in enumerate(parts)
    )


def listed(nav: Any) -> list[str]:
    """The pages in a navigation, which is made of texts, lists and tables."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in listed(part)]


def on_config(config: Any) -> Any:
    """Add to the navigation the pages that have no place in it yet, under More, and those of the reference."""
    pages = {path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir).rglob("*.md")}
    if more := sorted(pages - set(listed(config.nav))):
        config.nav.append({"More": more})
    config.nav.append({"Reference": list(reference())})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the reference."""
    from mkdocs.structure.files import File

    for path, text in reference().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make names of pages links."""
    return linked(markdown, page.file.src_uri)


def on_post_build(config: Any) -> None:
    """Refuse a site that fetches anything from elsewhere, or lacks a name."""
    from mkdocs.exceptions import PluginError

    site = Path(config.site_dir)
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(
            r'<(?:script|img|iframe|link(?! rel="canonical"))[^>]*(?:src|href)="((?:https?:)?//[^"]+)"', text
        )
        if fetched:
            raise PluginError(f"{page.relative_to(site)} fetches {fetched[0]}: a page may load nothing from elsewhere")
    for module in PUBLIC:
        text = (site / "reference" / f"{module}.html").read_text(encoding="utf-8")
        anchors = set(re.findall(r'id="([^"]+)"', text))
        for name in names(module):
            if f"{module}.{name}" not in anchors and f">fedkin.{name}<" not in text and not name.startswith("__"):
                raise PluginError(f"the reference lacks {module}.{name}")
