"""Measure the house and hold its rules: `make shape`.

Counts what lies under services/ and spark_jobs/, and the plugin's Java; generated code, demos and
tests are not product. The tests of tests/unit/test_shape.py hold what `broken_rules` finds.
"""

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from services.api.roles import RULES
from tools.reference import config_markdown

ROOT = Path(__file__).parent.parent
PACKAGES = ("services", "spark_jobs")
SHORT_LINES = 30

BUDGETS = {
    "services/api": 6_602,
    "services/common": 2_150,
    "services/rpc": 6_076,
    "services/rsm": 11_964,
    "services/rlmm": 10_494,
    "services/workflows": 5_178,
    "services/rlm": 20_650,
    "services/records services/client": 2_212,
    "services/views": 1_440,
    "services/cli": 8_629,
    "services/console": 1_170,
    "services/local": 2_731,
    "services/interop": 1_730,
    "spark_jobs": 8_377,
}
"""Lines with docstrings by folder. Who raises one says why in the commit."""
PRODUCT_LINES = 89_348
PLUGIN_LINES = 6_260
TOOLS_LINES = 3_768
TEST_LINES = 129_316
SETTINGS = 168
RPCS = 71

READING = ("services.rlm.fetch", "services.rlm.consumers", "services.client")
SHARED_BY_RLM = ("partition", "tier", "losses", "reporting", "kafka_log", "metrics", "settings")
"""What reading needs of shipping: modules and folders of services/rlm by the begin of the name."""
DOOR = ("services.rlm.manager", "services.rlm.fetch.reads")
"""The one import of shipping that leads into reading."""
WINGS = (
    *("spark_jobs", "services.cli", "services.console", "services.views", "services.local"),
    "services.interop",
)
"""Each may import the core and what it needs of shipping and reading."""
BETWEEN_WINGS = {
    "services.cli": ("services.views", "services.local", "services.interop", "spark_jobs"),
    "services.console": ("services.views", "services.local"),
    "spark_jobs": ("services.local",),
}
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*|_?log")


# --- modules and their imports --------------------------------------------------------------------


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


# --- rule a: the table of parts -------------------------------------------------------------------


def part_of(name: str) -> str:
    """Return core, shipping, reading, or the wing that a module belongs to."""
    wing = next((w for w in WINGS if name == w or name.startswith(w + ".")), None)
    if wing:
        return wing
    if name.startswith(READING):
        return "reading"
    if name == "services.rlm" or name.startswith("services.rlm."):
        return "shipping"
    return "core"


def crossed_parts() -> Iterator[str]:
    """Yield the imports that the table of parts does not have."""
    for name in modules():
        for wanted in sorted(imports_of(name)):
            if wanted != "services" and not _may_import(name, wanted):
                yield f"{name} ({part_of(name)}) imports {wanted} ({part_of(wanted)})"


def _may_import(name: str, wanted: str) -> bool:
    ours, theirs = part_of(name), part_of(wanted)
    if theirs in (ours, "core"):
        return True
    if ours == "core":
        return False
    if ours == "shipping":
        # The main starts both halves.
        return name == "services.rlm.__main__" or (name, wanted) == DOOR
    if ours == "reading":
        return wanted.startswith(tuple(f"services.rlm.{each}" for each in SHARED_BY_RLM))
    return theirs in ("shipping", "reading") or theirs in BETWEEN_WINGS.get(ours, ())


# --- rule c: files that were glued ----------------------------------------------------------------


def glued_files() -> Iterator[str]:
    """Yield the places of constants or a logger below a class that they do not serve alone.

    What is made of the definitions above it, a table of them for example, stands below them.
    """
    for name, path in modules().items():
        for line, names in misplaced(ast.parse(path.read_text())):
            yield f"{path.relative_to(ROOT)}:{line} ({name}): {', '.join(names)}"


def misplaced(tree: ast.Module) -> Iterator[tuple[int, list[str]]]:
    """Yield line and names of each block that could stand at the top of its file."""
    below_class = False
    made: set[str] = set()
    at = 0
    while at < len(tree.body):
        node = tree.body[at]
        below_class = below_class or isinstance(node, ast.ClassDef)
        if not (below_class and _constants(node)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                made.add(node.name)
            at += 1
            continue
        block = [node]
        at += 1
        while at < len(tree.body) and (_constants(tree.body[at]) or _is_text(tree.body[at])):
            block.append(tree.body[at])
            at += 1
        names: list[str] = []
        for each in block:
            if _used(each) & made:
                made.update(_constants(each))
            else:
                names += _constants(each)
        users = [d for d in tree.body if isinstance(d, ast.ClassDef | ast.FunctionDef)]
        users = [d for d in users if _used(d) & set(names)]
        is_beside = len(users) == 1 and isinstance(users[0], ast.ClassDef)
        if (len(names) >= 2 or any(n.endswith("log") for n in names)) and not is_beside:
            yield node.lineno, names


def _constants(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    names = [t.id for t in targets if isinstance(t, ast.Name)]
    return names if names and all(_CONSTANT.fullmatch(n) for n in names) else []


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _used(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


# --- rules b and d: budgets -----------------------------------------------------------------------


@cache
def tracked_lines(*patterns: str) -> int:
    """Return the lines of the files in git that match one of the patterns."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    files = [ROOT / name.decode() for name in listed if name]
    return sum(path.read_bytes().count(b"\n") for path in files if path.is_file())


def counts() -> Iterator[tuple[str, int, int]]:
    """Yield what is counted, how much there is, and its budget."""
    total = 0
    for folders, budget in BUDGETS.items():
        lines = tracked_lines(*(f"{folder}/*.py" for folder in folders.split()))
        total += lines
        yield folders.replace(" services/", " + "), lines, budget
    yield "product Python", total, PRODUCT_LINES
    yield "plugin Java", tracked_lines("kafka_plugin/src/main/*.java"), PLUGIN_LINES
    yield "tools", tracked_lines("tools/*.py"), TOOLS_LINES
    yield "tests", tracked_lines("tests/*.py"), TEST_LINES
    yield "settings", len(re.findall(r"(?m)^\| `[A-Z_]+` ", config_markdown())), SETTINGS
    yield "RPCs", len(RULES), RPCS


def part_lines() -> Mapping[str, int]:
    """Return the lines of core, shipping, reading and each wing."""
    lines: dict[str, int] = {}
    for name in modules():
        lines[part_of(name)] = lines.get(part_of(name), 0) + lines_of(name)
    return lines


def broken_rules() -> list[str]:
    """Return what breaks a rule, in words."""
    return [
        *crossed_parts(),
        *(f"{name}: {count:,} of {most:,}" for name, count, most in counts() if count > most),
        *glued_files(),
        *(f"circle: {' <-> '.join(group)}" for group in circles(folder_imports())),
    ]


def _report() -> Iterator[str]:
    yield "lines by folder, and their budget"
    for name, count, most in counts():
        yield f"  {name:<36}{count:>8,}{most:>9,}{'  OVER' if count > most else ''}"
    yield "lines by part"
    for part, lines in part_lines().items():
        yield f"  {part:<36}{lines:>8,}"
    sizes = {name: lines_of(name) for name in modules()}
    longest = max(sizes, key=lambda name: sizes[name])
    yield "modules"
    yield f"  {'in all':<36}{len(sizes):>8,}"
    yield f"  {'median lines':<36}{int(statistics.median(sizes.values())):>8,}"
    yield f"  {f'under {SHORT_LINES} lines':<36}{sum(n < SHORT_LINES for n in sizes.values()):>8,}"
    yield f"  {'longest':<36}{sizes[longest]:>8,}  {longest}"
    broken = broken_rules()
    yield f"rules broken{len(broken):>34,}"
    yield from (f"  {each}" for each in broken)


if __name__ == "__main__":
    sys.stdout.write("\n".join(_report()) + "\n")
