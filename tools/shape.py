"""Measure the shape of the product's Python: `make shape`.

Counts what lies under services/ and spark_jobs/; generated code, demos and tests are not product.
"""

import ast
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("services", "spark_jobs")
SHORT_LINES = 30

# What a reader must know to know one role: the limits of redesign's import closures.
CLOSURES = {
    "RLM's copy task": ("services.rlm.copy.task", 45),
    "RLM's Fetch": ("services.rlm.fetch.fetcher", 58),
    "RLM's expiration task": ("services.rlm.retention.expiration_task", 44),
    "RSM's manager": ("services.rsm.manager", 27),
    "RLMM's manager": ("services.rlmm.manager", 46),
    "Spark's retention sweep": ("spark_jobs.sweeps.retention_sweep", 50),
}


@cache
def modules() -> Mapping[str, Path]:
    """Return the product's modules by dotted name; a package's name is that of its `__init__`."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def lines_of(name: str) -> int:
    return len(modules()[name].read_text().splitlines())


@cache
def every_import_of(name: str) -> frozenset[str]:
    """Return the dotted names in a module's import statements, at its top or within."""
    found: set[str] = set()
    for node in statements_of(ast.parse(modules()[name].read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            found.update(i if i in modules() else node.module for i in inner)
    return frozenset(found)


def statements_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements; expressions, most of a tree, are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield node
            yield from statements_of(node)


def imports_of(name: str) -> set[str]:
    """Return the product's modules that a module imports."""
    return {n for n in every_import_of(name) if n in modules()} - {name}


def closure_of(name: str) -> set[str]:
    """Return the modules that importing `name` reaches, itself too, without `__init__` files."""
    seen, todo = {name}, [name]
    while todo:
        for wanted in imports_of(todo.pop()) - seen:
            seen.add(wanted)
            todo.append(wanted)
    return {n for n in seen if modules()[n].name != "__init__.py"}


def folder_of(name: str) -> str:
    return ".".join(modules()[name].parent.relative_to(ROOT).parts)


def folder_imports() -> Mapping[str, set[str]]:
    """Return which folders each folder imports from, as far as both lie in the same folder.

    spark_jobs/ counts as one that lies in services/.

    A folder and the modules beside it may know each other: `services/rlm/partition.py` is what
    `services/rlm/copy/` works on, and `services/rlm/manager.py` is made of it.
    """
    edges: dict[str, set[str]] = {}
    for name in modules():
        for other in imports_of(name):
            ours, theirs = _path_of(name), _path_of(other)
            for at, (a, b) in enumerate(zip(ours, theirs, strict=False), 1):
                if a != b:
                    here, there = ".".join(ours[:at]), ".".join(theirs[:at])
                    edges.setdefault(here, set()).add(there)
                    edges.setdefault(there, set())
                    break
    return edges


def _path_of(name: str) -> list[str]:
    return folder_of(name).removeprefix("services.").split(".")


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the groups of folders that reach each other (strongly connected components)."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(edges.get(start, ()))
        while todo:
            folder = todo.pop()
            if folder not in seen:
                seen.add(folder)
                todo.extend(edges.get(folder, ()))
        return seen

    reach = {folder: reached(folder) for folder in edges}
    groups = {
        tuple(sorted(other for other in reach if other in reach[folder] and folder in reach[other]))
        for folder in edges
        if folder in reach[folder]
    }
    return [list(group) for group in sorted(groups)]


def shape() -> dict[str, object]:
    """Return every figure of the report."""
    counts = {name: lines_of(name) for name in modules()}
    longest = max(counts, key=lambda name: counts[name])
    return {
        "modules": len(counts),
        "lines": sum(counts.values()),
        "median_lines": int(statistics.median(counts.values())),
        "longest_lines": counts[longest],
        "longest": longest,
        "short_modules": sum(count < SHORT_LINES for count in counts.values()),
        "folder_circles": circles(folder_imports()),
        "closures": {title: len(closure_of(name)) for title, (name, _) in CLOSURES.items()},
    }


def _report() -> Iterator[str]:
    found = shape()
    yield f"modules                  {found['modules']:>7,}"
    yield f"lines                    {found['lines']:>7,}"
    yield f"median lines a module    {found['median_lines']:>7,}"
    yield f"longest module           {found['longest_lines']:>7,}  {found['longest']}"
    yield f"modules under {SHORT_LINES} lines   {found['short_modules']:>7,}"
    groups = circles(folder_imports())
    yield f"circles between folders  {len(groups):>7,}"
    yield from (f"    {' <-> '.join(group)}" for group in groups)
    yield "modules that a role's import reaches"
    for title, (name, most) in CLOSURES.items():
        yield f"  {title:<24}{len(closure_of(name)):>6}  of {most} at most  {name}"


if __name__ == "__main__":
    text = json.dumps(shape(), indent=2) if "--json" in sys.argv else "\n".join(_report())
    sys.stdout.write(text + "\n")
