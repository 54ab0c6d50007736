"""Check that only the owners that docs/understand/architecture.md names retry."""

import ast
import re
from collections.abc import Iterator

import pytest

from tools.shape import ROOT, every_import_of, modules

# They catch errors within a loop, but not to do the same again.
NO_RETRIES = {
    "services.cli.doctor": "waits for the next finding",
    "services.cli.drain": "asks again how much is active",
    "services.console.segment_life": "reads pages until the partition is gone",
    "services.common.retry": "plans again",
    "services.cli.copy": "waits until no reader has an earlier look-up",
    "services.interop.metadata_import": "folds again with what earlier steps have stored",
    "services.local.trial": "waits until a server ends",
    "services.rlmm.operations.verification_ages": "reads again when the next interval has passed",
    "services.rlm.consumers.listener": "accepts the next connection",
    "services.rlm.fetch.replicas": "waits until a copy has finished",
    "services.rlm.retention.local_owner": "waits until the broker has heard of a setting",
    "services.rpc.server.processes": "reads what a process sends next",
    "services.rsm.metrics": "yields what another iterator yields",
    "spark_jobs.records.reading": "opens a stream that broke off behind its bytes",
    "spark_jobs.sweeps.executors": "waits for executors",
    "services.rsm.fetch": "reads an index in place of a reader that has left",
}
PAUSES = {"delay_s", "get_backoff_time", "sleep", "Retrying"}
LIBRARIES = {"tenacity", "backoff", "retrying"}
# Most modules have none of these words, and need not be parsed.
WORDS = re.compile("|".join([r"(?:\bwhile\b|in range\().*except", *PAUSES]), re.DOTALL)
NAMES_OF_LIBRARIES = re.compile("|".join(LIBRARIES))


def documented_owners() -> set[str]:
    """Return the modules in the second column of the table of retries."""
    page = (ROOT / "docs" / "understand" / "architecture.md").read_text()
    table = page.split("## Retries\n")[1].split("\n## ")[0]
    paths = re.findall(r"^\|[^|]+\| `([\w/]+)\.py` \|", table, re.MULTILINE)
    return {path.replace("/", ".") for path in paths}


def signs_of_retries(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the loops that go on after an error, and the calls that decide how long to pause."""
    for node in ast.walk(tree):
        match node:
            case ast.While(body=body) | ast.For(iter=ast.Call(func=ast.Name("range")), body=body):
                yield from (step for step in body if isinstance(step, ast.Try) and step.handlers)
            case ast.Call(func=ast.Name(name) | ast.Attribute(attr=name)) if name in PAUSES:
                yield node


@pytest.mark.deep  # It parses half of all modules.
def test_only_the_documented_owners_retry() -> None:
    texts = {name: path.read_text() for name, path in modules().items()}
    found = {
        name
        for name, text in texts.items()
        if WORDS.search(text) and any(signs_of_retries(ast.parse(text)))
    }
    assert found - set(NO_RETRIES) == documented_owners()


def test_only_owners_use_a_library_that_retries() -> None:
    users = {
        name
        for name, path in modules().items()
        if NAMES_OF_LIBRARIES.search(path.read_text())
        for wanted in every_import_of(name)
        if wanted.split(".")[0] in LIBRARIES
    }
    assert users == {"spark_jobs.connections"}
