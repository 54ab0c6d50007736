"""Test the detection of changed files without reading them."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from services.rlm.kafka_log import partition_dir
from services.rlm.kafka_log.partition_dir import fingerprint_of, is_settled
from tests.harness.eventually import eventually

SECOND_NS = 1_000_000_000
TIMES = [
    (SECOND_NS, 0, False),
    (SECOND_NS, 1, True),
    (3 * SECOND_NS, 0, True),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_text("old")
    return made


def test_while_another_change_might_be_hidden_nothing_is_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(path, ns=(0, 0))  # which is a change, and says that there was none
    changed_ns, now_ns = path.stat().st_ctime_ns, [0]
    monkeypatch.setattr(partition_dir, "time", SimpleNamespace(time_ns=lambda: now_ns[0]))
    now_ns[0] = changed_ns + 100_000_000
    assert fingerprint_of(path) is None
    now_ns[0] += 1
    assert fingerprint_of(path) is not None


@pytest.mark.parametrize(("age_ns", "fraction_ns", "settled"), TIMES)
def test_a_whole_second_may_be_of_a_coarse_clock(
    age_ns: int, fraction_ns: int, settled: bool
) -> None:
    now_s = time.time_ns() // SECOND_NS
    assert is_settled(now_s * SECOND_NS - age_ns + fraction_ns) is settled


def test_missing_file_has_no_fingerprint(tmp_path: Path) -> None:
    assert fingerprint_of(tmp_path / "none") is None


def replace_file(path: Path) -> None:
    new = path.with_name("new")
    new.write_text("old")
    os.replace(new, path)


def write_and_set_the_time_back(path: Path) -> None:
    before = path.stat()
    path.write_text("new")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [replace_file, write_and_set_the_time_back, lambda path: path.chmod(0o400)],
    ids=["replaced", "written", "rights"],
)
def test_a_change_shows(path: Path, change: Callable[[Path], None]) -> None:
    before = eventually(lambda: fingerprint_of(path))
    assert fingerprint_of(path) == before
    change(path)
    assert eventually(lambda: fingerprint_of(path)) != before
