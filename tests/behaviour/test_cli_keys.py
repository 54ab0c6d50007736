"""Test `sediment keys` over real services: a rotation under way, and the old key destroyed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event
from uuid import UUID, uuid4

import pytest

from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.rsm.factory import build_manager
from services.rsm.settings import RsmSettings
from services.workflows.rewrap import KeyRun, Rewrapped
from tests.contract.remote_storage_manager_contract import Files, a_segment, fetched, some_bytes
from tests.contract.rsm_over_s3 import with_properties
from tests.harness.processes import RlmmProcess, serving_rlmm
from tests.harness.served import ServedRsm, serving
from tests.unit.rsm.test_rsm_keys import write_key

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    write_key(tmp_path / "keys", "old", current=True)
    return tmp_path / "keys"


@pytest.fixture
def settings(tmp_path: Path, keys: Path) -> RsmSettings:
    (tmp_path / "store").mkdir()
    file = tmp_path / "locations.toml"
    file.write_text(f'[keys]\ndirectory = "{keys}"\n')
    return RsmSettings.model_validate(
        {
            "backend": "filesystem",
            "directory": tmp_path / "store",
            "prefix": "tier/",
            "location_id": 1,
            "deployment_id": "here",
            "locations_file": file,
        }
    )


@pytest.fixture
def rsm(settings: RsmSettings) -> Iterator[ServedRsm]:
    with serving(settings) as made:
        yield made


@pytest.fixture
def rlmm(database_url: str, rsm: ServedRsm) -> Iterator[RlmmProcess]:
    with serving_rlmm(database_url) as made:
        yield made.beside(SEDIMENT_RSM=rsm.address)


TOPIC = a_segment().topic_id_partition.topic_id


def shipped(
    rsm: ServedRsm, rlmm: RlmmProcess, files: Files, start: int = 0, topic_id: UUID = TOPIC
) -> RemoteLogSegmentMetadata:
    row = replace(
        a_segment(topic_id=topic_id),
        start_offset=start,
        end_offset=start + 9,
        segment_leader_epochs=segment_leader_epochs([(0, start)]),
        segment_size_in_bytes=len(files.log),
    )
    rlmm.client.add_remote_log_segment_metadata(row)
    custom = rsm.client.copy_log_segment_data(row, files.data())
    update = RemoteLogSegmentMetadataUpdate(
        row.remote_log_segment_id, row.event_timestamp_ms, FINISHED, row.broker_id, custom
    )
    rlmm.client.update_remote_log_segment_metadata(update)
    return replace(row, custom_metadata=custom, state=FINISHED)


def test_a_rotation_leaves_all_readable_without_the_old_key(
    rsm: ServedRsm, rlmm: RlmmProcess, keys: Path
) -> None:
    files = Files(some_bytes(10_000))
    before = [shipped(rsm, rlmm, files, 10 * n) for n in range(3)]
    write_key(keys, "new", current=True)
    after = shipped(rsm, rlmm, files, 30)
    [seen] = rlmm.answers("keys")
    assert (seen["current"], seen["ring"]) == ("new", ["new", "old"])
    assert {each["key_id"]: each["segments"] for each in seen["keys"]} == {"new": 1, "old": 3}
    [done] = rlmm.answers("keys", "rewrap", "--from", "old")
    assert (done["segments"], done["changed"], done["failed"]) == (3, 3, 0)
    (keys / "old").unlink()
    [seen] = rlmm.answers("keys")
    assert [(each["key_id"], each["segments"]) for each in seen["keys"]] == [("new", 4)]
    for each in (*before, after):
        assert fetched(rsm.client, each) == files.log
    [again] = rlmm.answers("keys", "rewrap")
    assert (again["segments"], again["changed"]) == (4, 0)


class CutShortError(Exception):
    """Ctrl-C, or a service that fails."""


def test_a_run_that_is_cut_short_goes_on_after_the_topics_that_it_has_done(
    rsm: ServedRsm, rlmm: RlmmProcess, keys: Path
) -> None:
    topics = sorted(a_segment().topic_id_partition.topic_id for _ in range(2))
    for topic in topics:
        for start in (0, 10):
            shipped(rsm, rlmm, Files(some_bytes(10)), start, topic)
    write_key(keys, "new", current=True)

    def cut_short(done: Rewrapped) -> None:
        if done.segments > 2:
            raise CutShortError

    with pytest.raises(CutShortError):
        KeyRun(rlmm.client, rsm.objects, on_progress=cut_short).rewrap()
    some = KeyRun(rlmm.client, rsm.objects, frozenset(topics[1:])).rewrap()
    assert (some.segments, some.topics_before) == (2, 0)
    rest = KeyRun(rlmm.client, rsm.objects).rewrap()
    assert (rest.segments, rest.topics_before, rest.failed) == (2, 1, 0)
    again = KeyRun(rlmm.client, rsm.objects).rewrap()
    assert (again.segments, again.topics_before, again.changed) == (4, 0, 0)


@pytest.mark.deep
def test_a_rewrap_that_is_killed_is_continued_and_all_stays_readable(
    rsm: ServedRsm, rlmm: RlmmProcess, keys: Path, settings: RsmSettings
) -> None:
    """The second topic has two batches, of which one is rewrapped, and the other perhaps."""
    files = Files(some_bytes(100))
    first, second, third = sorted(a_segment().topic_id_partition.topic_id for _ in range(3))
    copies = [(first, 0), *((second, 10 * n) for n in range(51)), (third, 0)]
    segments = [shipped(rsm, rlmm, files, start, topic) for topic, start in copies]
    write_key(keys, "new", current=True)

    def read_all() -> None:
        # It has no data key and no digests in memory.
        with closing(build_manager(settings)) as fresh:
            fresh.check()
            assert [fetched(fresh, each) for each in segments] == [files.log] * len(segments)

    def read_until(has_ended: Event) -> None:
        while not has_ended.is_set():
            read_all()

    has_ended = Event()
    with ThreadPoolExecutor(1) as pool:
        reads = pool.submit(read_until, has_ended)
        try:
            killed = subprocess.run(
                [sys.executable, "-m", "services.cli", "keys", "rewrap"],
                env={
                    **os.environ,
                    **rlmm.variables,
                    "SEDIMENT_RLMM": rlmm.address,
                    "SEDIMENT_FAILPOINT": "rewrap.some:2",
                },
                capture_output=True,
                timeout=120,
                check=False,
            )
            assert killed.returncode == -signal.SIGKILL, killed.stderr
            [rest] = rlmm.answers("keys", "rewrap")
        finally:
            has_ended.set()
        reads.result()
    assert (rest["segments"], rest["topics_before"], rest["failed"]) == (52, 1, 0)
    assert 1 <= rest["changed"] <= 2
    (keys / "old").unlink()
    read_all()
    [seen] = rlmm.answers("keys")
    assert [(each["key_id"], each["segments"]) for each in seen["keys"]] == [("new", 53)]


@pytest.mark.deep
@pytest.mark.parametrize("encrypts", [True, False])
def test_without_its_ring_a_tier_names_the_keys_that_it_needs(
    rlmm: RlmmProcess, keys: Path, settings: RsmSettings, tmp_path: Path, encrypts: bool
) -> None:
    sealing = f'encryption = {str(encrypts).lower()}\n[keys]\ndirectory = "{keys}"'
    for current in ("old", "new"):
        write_key(keys, current, current=True)
        with serving(with_properties(settings, tmp_path, sealing)) as rsm:
            shipped(rsm, rlmm, Files(some_bytes(10)), topic_id=uuid4())
    shutil.rmtree(keys)
    with serving(settings.model_copy(update={"locations_file": None})) as rsm:
        without = rlmm.beside(SEDIMENT_RSM=rsm.address)
        shown = without.sediment("keys", "-o", "json")
        doctor = without.sediment("doctor", "-o", "json")
    found = {each["key_id"]: each for each in json.loads(shown.stdout)["keys"]}
    assert {key_id: each["segments"] for key_id, each in found.items()} == {"new": 1, "old": 1}
    findings = [e for e in json.loads(doctor.stdout)["findings"] if e["check"] == "keys"]
    if encrypts:
        assert shown.returncode == 1
        assert "needs key 'old': RSM has no ring" in found["old"]["problem"]
        assert [each["level"] for each in findings] == ["FAIL", "FAIL"]
    else:
        assert shown.returncode == 0
        [finding] = findings
        assert finding["level"] == "WARN"
        assert "no ring" in finding["text"]
        assert "new, old" in finding["text"]


def test_a_key_that_is_missing_is_named(rsm: ServedRsm, rlmm: RlmmProcess, keys: Path) -> None:
    shipped(rsm, rlmm, Files(some_bytes(10)))
    write_key(keys, "new", current=True)
    [done] = rlmm.answers("keys", "rewrap", "--from", "none-such")
    assert done["changed"] == 0
    (keys / "old").unlink()
    answer = rlmm.sediment("keys")
    assert answer.returncode == 1
    assert "needs key 'old'" in " ".join(answer.stderr.split())
    found = rlmm.sediment("doctor", "-o", "json")
    assert found.returncode == 2
    [finding] = [e for e in json.loads(found.stdout)["findings"] if e["check"] == "keys"]
    assert finding["level"] == "FAIL"
    assert "key old: " in finding["text"]
