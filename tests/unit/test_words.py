"""Check that each thing has one word: those of docs/start/glossary.md."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hatch_build import ROOT

RETIRED = {
    r"pending_(segments|size_bytes|bytes)|uncopied|(still|\") ?to ship|not copied yet|waits? to be "
    r"copied": "lag",
    r"h[eo]ld(s|ing)?[ _-]?back|held_segments": "blocked",
    r"held_topics|topics_held": "topics_on_hold: on hold",
    r"local from|on the broker from|earliest local offset": "local log start",
    r"(another|other|the only|only the) owner|owns? (its|their) retention|retention by\"|owner of "
    r"retention": "retention owner",
    r"(?<!LISTENER )(?<!RLM )TOPIC PARTITION\b": "TOPIC-PARTITION",
    r"\"(retention|partition_removal)_sweep\"": "sweep retention, sweep removal",
}
"""What people read and type no more, in any letters, and the word instead."""

SHOWN = ("services", "spark_jobs", "demos", "tools", "helm", "protos", "docs", "docs_site")
READ = {".py", ".js", ".html", ".css", ".md", ".json", ".yaml", ".yml", ".tpl", ".proto", ".java"}
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "kafka_plugin/src/main")


def files() -> Iterator[Path]:
    for name in (*SHOWN, *PAGES):
        at = ROOT / name
        found = at.rglob("*") if at.is_dir() else [at]
        yield from (p for p in found if p.suffix in READ and "vendor" not in p.parts)


@pytest.mark.parametrize(("words", "instead"), RETIRED.items(), ids=[*RETIRED.values()])
def test_no_other_word_is_used_for_it(words: str, instead: str) -> None:
    retired = re.compile(words, re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in retired.finditer(line)
    ]
    assert found == [], f"the word is {instead!r}"
