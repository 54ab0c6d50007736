"""Test changes during a pass of local retention, and foreign files in the folder.

A segment stays if RLM is no longer sure that the tier has it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any
from uuid import UUID

import pytest

from services.api.errors import ConcurrentUpdateError, RemoteResourceNotFoundError
from services.api.segments import RemoteLogSegmentMetadata
from services.api.topic_config import StoredTopicConfig
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.retention.local_files import LogDirLocks
from services.rlm.roles import stopping
from services.rlm.roles.partition_roles import PartitionSource
from tests.harness.callback_rlm import LEADER, TIERING_DISABLED, refused_as, send_role, stop
from tests.harness.owned_log import ALL, NOTHING_STAYS, MakesRlm, here, owner, put, retain
from tests.harness.retained_log import DEADLINE_S, Changed, expire, hourly_log, take_turns
from tests.harness.ship_stack import Stack, bytes_of, description, read
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, write_log_dir

pytestmark = pytest.mark.deep

EPOCH = 2  # the latest of an hourly log
FirstBytesRead = Callable[[RemoteLogSegmentMetadata], None]


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return write_log_dir(tmp_path / "logs")


@pytest.fixture
def files(log_dir: Path) -> PartitionFiles:
    return hourly_log(log_dir)


@pytest.fixture
def make_rlm(stack: Stack, log_dir: Path, files: PartitionFiles) -> Iterator[MakesRlm]:
    with closing(LogDirLocks([log_dir])) as locks:
        yield owner(stack, log_dir, locks)


@pytest.fixture
def rlm(stack: Stack, make_rlm: MakesRlm) -> BrokerRemoteLogManager:
    """Provide an RLM that has copied all rolled segments."""
    made = make_rlm()
    take_turns(made)
    assert stack.ranges() == [(base, base + 9) for base in ALL[:-1]]
    return made


def meanwhile(stack: Stack, start_offset: int, change: Callable[[], object]) -> Any:
    """Wrap an RSM so that `change` runs once, during the request for the segment at
    `start_offset`.
    """
    changes = iter([change])

    def fetch(segment: RemoteLogSegmentMetadata, *positions: int) -> Iterator[bytes]:
        if segment.start_offset == start_offset:
            for each in changes:
                each()
        return stack.rsm.fetch_log_segment(segment, *positions)

    return Changed(stack.rsm, fetch_log_segment=fetch)


@pytest.mark.parametrize(
    "setting",
    [
        {"sediment.hold": "true"},
        {"sediment.retention.owner": "broker"},
        {"remote.storage.enable": "false"},
        {"local.retention.ms": "-1"},
    ],
)
def test_setting_changed_during_a_pass_applies_from_the_next_segment(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    make_rlm: MakesRlm,
    files: PartitionFiles,
    setting: dict[str, str],
) -> None:
    put(stack, NOTHING_STAYS)
    changing = make_rlm(rsm=meanwhile(stack, 20, lambda: put(stack, NOTHING_STAYS, setting)))
    retain(changing)
    assert here(files) == ALL[2:]
    retain(changing)
    assert here(files) == ALL[2:]
    put(stack, NOTHING_STAYS)
    retain(changing)
    assert here(files) == [60]


def test_a_setting_that_forbids_nothing_only_ends_the_pass(
    stack: Stack, rlm: BrokerRemoteLogManager, make_rlm: MakesRlm, files: PartitionFiles
) -> None:
    put(stack, NOTHING_STAYS)
    changing = make_rlm(
        rsm=meanwhile(stack, 20, lambda: put(stack, NOTHING_STAYS, {"remote.copy.lag.ms": "0"}))
    )
    retain(changing)
    retain(changing)
    assert here(files) == [60]


@pytest.mark.parametrize("known_for", [0, 1, 3])
def test_of_a_topic_that_rlmm_does_not_know_any_more_nothing_goes(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    make_rlm: MakesRlm,
    files: PartitionFiles,
    known_for: int,
) -> None:
    """RLM sends one request for the pass, and one for each segment."""
    left = iter(range(known_for))

    def topic_config(topic_id: UUID) -> StoredTopicConfig:
        if next(left, None) is None:
            raise RemoteResourceNotFoundError("on purpose")
        return stack.rlmm.topic_config(topic_id)

    put(stack, NOTHING_STAYS)
    retain(make_rlm(rlmm=Changed(stack.rlmm, topic_config=topic_config)))
    assert here(files) == ALL[max(known_for - 1, 0) :]


def test_tiering_is_disabled_while_a_pass_is_in_progress(
    stack: Stack,
    make_rlm: MakesRlm,
    files: PartitionFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole tier will be deleted, so the data that only the tier has must not grow
    meanwhile.
    """
    written = bytes_of(files.path)
    asked, go_on = Event(), Event()

    def wait() -> None:
        asked.set()
        assert go_on.wait(DEADLINE_S)

    leader = make_rlm(rsm=meanwhile(stack, 20, wait), source=PartitionSource.CALLBACKS)
    assert send_role(leader, LEADER, EPOCH) is None
    take_turns(leader)
    put(stack, NOTHING_STAYS, {"remote.log.delete.on.disable": "true"})
    leader.local_retention_scheduler.tick()
    assert asked.wait(DEADLINE_S)
    monkeypatch.setattr(stopping, "COPY_ENDS_WITHIN_S", 0.0)
    try:
        assert refused_as(stop(leader, TIERING_DISABLED, EPOCH)) is ConcurrentUpdateError
        assert stack.ranges() == [(base, base + 9) for base in ALL[:-1]]
    finally:
        go_on.set()
    assert leader.local_retention_scheduler.wait_idle(DEADLINE_S)
    left = here(files)
    monkeypatch.undo()
    assert stop(leader, TIERING_DISABLED, EPOCH) is None
    expire(leader)
    assert (stack.segments(), here(files)) == ([], left)
    start = stack.rlmm.partition_state(NAME).value.log_start_offset
    assert start == left[0]
    again = make_rlm()
    assert read(again, start) == written[len(written) - len(bytes_of(files.path)) :]


def test_a_folder_that_is_replaced_after_the_last_look_keeps_its_files(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    files: PartitionFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic is created again right before the first file is renamed."""
    other = hourly_log(write_log_dir(tmp_path / "others"), replace(NAME, topic_id=UUID(int=5)))
    content = {path.name: path.read_bytes() for path in other.path.iterdir()}
    real = os.rename

    def replacing(*paths: Any, **options: Any) -> None:
        monkeypatch.undo()
        files.path.rename(tmp_path / "away")
        other.path.rename(files.path)
        real(*paths, **options)

    put(stack, NOTHING_STAYS)
    monkeypatch.setattr("os.rename", replacing)
    retain(rlm)
    assert {path.name: path.read_bytes() for path in files.path.iterdir()} == content


def test_another_folder_of_the_same_partition_is_read_again(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    make_rlm: MakesRlm,
    files: PartitionFiles,
    tmp_path: Path,
) -> None:
    """The folder is restored: the findings in the first one do not apply to its files."""
    other = Path(shutil.copytree(files.path, tmp_path / "other"))

    def replaced() -> None:
        files.path.rename(tmp_path / "away")
        other.rename(files.path)

    put(stack, NOTHING_STAYS)
    changing = make_rlm(rsm=meanwhile(stack, 20, replaced))
    retain(changing)
    assert here(files) == ALL


def test_a_segment_that_became_the_active_one_stays(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    make_rlm: MakesRlm,
    files: PartitionFiles,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another program truncates the log to within the segment."""

    def truncated() -> None:
        for base in ALL[3:]:
            files.file(base, ".log").unlink()

    put(stack, NOTHING_STAYS)
    retain(make_rlm(rsm=meanwhile(stack, 20, truncated)))
    assert here(files) == [20]
    assert "changed since it was listed" in caplog.text


def test_a_segment_that_was_written_to_stays(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    make_rlm: MakesRlm,
    files: PartitionFiles,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = files.file(20, ".log")
    put(stack, NOTHING_STAYS)
    retain(make_rlm(rsm=meanwhile(stack, 20, lambda: log.write_bytes(log.read_bytes() + b"x"))))
    assert here(files) == ALL[2:]
    assert "bytes in the tier and" in caplog.text


def test_other_records_behind_the_same_first_batch_stay(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    make_rlm: MakesRlm,
    files: PartitionFiles,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = files.file(20, ".log")
    first = log.read_bytes()[: log.stat().st_size // 2]
    log.write_bytes(first + batch(25, 5, payload=b"longer than what was copied"))
    put(stack, {"local.retention.bytes": "0"})
    retain(make_rlm())
    assert here(files) == ALL[2:]
    assert "bytes in the tier and" in caplog.text


def test_a_log_start_behind_the_end_of_the_log_is_another_logs(
    stack: Stack,
    log_dir: Path,
    make_rlm: MakesRlm,
    files: PartitionFiles,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The checkpoint knows partitions by name alone.

    A restored log, or a topic that was created again, has the value of an older log there. No
    segment of this log is in the tier.
    """
    checkpoint = log_dir / "log-start-offset-checkpoint"
    checkpoint.write_text(f"0\n1\n{NAME.topic} {NAME.partition} 1000\n")
    rlm = make_rlm()
    take_turns(rlm)
    put(stack, NOTHING_STAYS)
    retain(rlm)
    assert stack.segments() == []
    assert here(files) == ALL
    assert "log-start-offset-checkpoint" in caplog.text


def test_segments_below_a_delete_records_offset_go_even_if_uncopied(
    stack: Stack, log_dir: Path, make_rlm: MakesRlm, files: PartitionFiles
) -> None:
    checkpoint = log_dir / "log-start-offset-checkpoint"
    checkpoint.write_text(f"0\n1\n{NAME.topic} {NAME.partition} 25\n")
    rlm = make_rlm()
    take_turns(rlm)
    retain(rlm)
    assert here(files) == ALL[2:]


@pytest.mark.parametrize("name", [f"{0:020}.log.swap", f"{30:020}.timeindex.swap"])
def test_swap_files_of_an_interrupted_rewrite_stop_the_pass(
    stack: Stack,
    rlm: BrokerRemoteLogManager,
    files: PartitionFiles,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    """The broker's next start would bring the swapped segment back, with a hole behind it."""
    before = files.file(0, ".log.deleted")
    before.write_bytes(b"x")
    (files.path / name).write_bytes(b"x")
    put(stack, NOTHING_STAYS)
    retain(rlm)
    assert here(files) == ALL
    assert before.exists()
    assert "was interrupted" in caplog.text


def test_nothing_that_rlm_does_lets_go_of_the_lock(
    stack: Stack, rlm: BrokerRemoteLogManager, log_dir: Path
) -> None:
    """A process loses such a lock when it closes the file, wherever it was opened."""
    put(stack, NOTHING_STAYS)
    take_turns(rlm, rounds=2)
    retain(rlm)
    description(rlm)
    read(rlm, 0)
    asks = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'r+') as file:\n"
        "    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", asks, str(log_dir / ".lock")], capture_output=True, check=False
    )
    assert b"BlockingIOError" in done.stderr
