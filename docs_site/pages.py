"""Take what is outside docs/ into the site: README.md, the chart's page, links to other files.

MkDocs calls the functions by their names.
"""

import posixpath
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mkdocs.structure.files import File
from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[1]
OUTSIDE = {"README.md": "index.md", "helm/README.md": "chart.md"}
"""Pages that are not in docs/, and their names in the site."""

GENERATED = ROOT / "build" / "reference"
"""What the site adds to pages of docs/reference by their names, and more files (`make site`)."""
GROWN = ("contracts.md", "json.md")

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video)\b[^>]*\bsrc=["'](?:https?:)?//[^"']*|"""
    r"""<link\b(?![^>]*rel=["']canonical)[^>]*\bhref=["'](?:https?:)?//[^"']*|"""
    r"""data-md-component="source"[^>]*"""
)
"""What a page loads from another host. The last asks GitHub about the repository."""
_FENCE = re.compile(r"(?m)^```[\s\S]*?^```")


def on_config(config: Any) -> Any:
    """Name anchors as GitHub does, and list the pages of whole folders."""
    config["mdx_configs"]["toc"]["slugify"] = slugify(case="lower")
    config["nav"] = [_listed(entry) for entry in config["nav"]]
    return config


def _listed(entry: Any) -> Any:
    """Replace the name of a folder in the navigation by its pages."""
    if isinstance(entry, dict):
        return {title: _listed(of) for title, of in entry.items()}
    if isinstance(entry, list):
        return [_listed(each) for each in entry]
    folder = ROOT / "docs" / str(entry)
    if not folder.is_dir():
        return entry
    # The overview, README.md, is the first.
    pages = sorted(folder.glob("*.md"), key=lambda page: (page.name != "README.md", page.name))
    return [f"{entry}/{page.name}" for page in pages]


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/, and the schemas of the JSON output."""
    for path, name in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text()))
    for schema in sorted((GENERATED / "json").glob("*.schema.json")):
        name = f"reference/json/{schema.name}"
        files.append(File.generated(config, name, content=schema.read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Add what is generated; lead links to the site's page, or to the file in the repository."""
    name = page.file.src_uri
    folder, _, file = name.rpartition("/")
    if folder == "reference" and file in GROWN:
        markdown += "\n" + (GENERATED / file).read_text()
    path = next((path for path, of in OUTSIDE.items() if of == name), f"docs/{name}")

    def led(match: "re.Match[str]") -> str:
        return f"{match[1]}{_target(path, name, match[2], config['extra']['repository'])}{match[3]}"

    # Text in fences is no link.
    parts, at = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(led, markdown[at : fence.start()]), fence.group()]
        at = fence.end()
    return "".join([*parts, _LINK.sub(led, markdown[at:])])


def _target(path: str, name: str, link: str, repository: str) -> str:
    """Return where a link of a page leads in the site.

    Args:
        path: of the page in the repository.
        name: of the page in the site.
    """
    parts = urlsplit(link)
    if parts.scheme or not parts.path:
        return link
    linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), parts.path))
    if (ROOT / linked / "README.md").is_file():
        linked = f"{linked}/README.md"
    there = OUTSIDE.get(linked) or linked.removeprefix("docs/")
    if linked not in OUTSIDE and (not linked.startswith("docs/") or (ROOT / linked).is_dir()):
        kind = "tree" if (ROOT / linked).is_dir() else "blob"
        return f"{repository}/{kind}/main/{linked}{_anchor(parts.fragment)}"
    return posixpath.relpath(there, posixpath.dirname(name) or ".") + _anchor(parts.fragment)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse a page that loads anything from another host, or asks one when it is read."""
    found = _LOADED.search(output)
    if found:
        raise ValueError(f"{page.file.src_uri} asks another host: {found.group()}")
    return output


def _anchor(fragment: str) -> str:
    return f"#{fragment}" if fragment else ""
