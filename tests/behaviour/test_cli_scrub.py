"""Test `sediment scrub` over real services."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from services.api.remote_storage_manager import IndexType
from services.local.seaweedfs import S3Endpoint
from services.rsm.backends.filesystem import FilesystemStorage
from services.workflows.partition_scrub import PartitionScrubbed
from services.workflows.scrub import Scrubbed
from tests.contract.remote_storage_manager_contract import MIB, Files, some_bytes
from tests.contract.rsm_over_s3 import settings_for
from tests.harness import served_fixtures
from tests.harness.faults import Answer
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy
from tests.harness.processes import RlmmProcess
from tests.harness.served import ServedRsm, serving
from tests.harness.stores import keys_in
from tests.harness.tier import SmallTier, a_topic, segment

SIZE = 2 * MIB + 500

rlmm, rsm, store = served_fixtures.rlmm_with_rsm, served_fixtures.rsm, served_fixtures.store


def scrub(rlmm: RlmmProcess, *options: str) -> tuple[int, dict[str, Any]]:
    done = rlmm.sediment("scrub", *options, "-o", "json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def fill(rlmm: RlmmProcess, rsm: ServedRsm, topic: str, segments: int) -> None:
    tier, (tp,) = SmallTier(rsm.client, rlmm.client), a_topic(topic)
    log = some_bytes(SIZE)
    for number in range(segments):
        tier.copy(segment(tp, number, segment_size_in_bytes=SIZE), Files(log))


def test_a_sound_tier_is_verified_in_parts(rlmm: RlmmProcess, rsm: ServedRsm) -> None:
    fill(rlmm, rsm, "orders", 3)
    code, reported = scrub(rlmm)
    assert (
        code,
        reported["segments"],
        reported["verified"],
        reported["part"],
        reported["parts"],
    ) == (
        *(0, 3, 3),
        *(1, 1),
    )
    assert reported["read_bytes"] > 3 * SIZE
    parts = [scrub(rlmm, "--part", f"{part}/2", "--rate", "0") for part in (1, 2)]
    assert [code for code, _ in parts] == [0, 0]
    assert sum(reported["verified"] for _, reported in parts) == 3


@pytest.mark.deep
def test_a_changed_byte_is_an_exit_code_and_an_anomaly(
    rlmm: RlmmProcess, rsm: ServedRsm, store: FilesystemStorage
) -> None:
    fill(rlmm, rsm, "orders", 1)
    fill(rlmm, rsm, "payments", 1)
    (key,) = (
        seen
        for seen in keys_in(store, "")
        if seen.endswith(".log") and seen.startswith(topic_of(rlmm, "orders"))
    )
    content = bytearray(store.get(key))
    content[MIB + 7] ^= 1
    store.put(key, bytes(content))
    code, reported = scrub(rlmm)
    assert (code, reported["verified"], reported["damaged"]) == (1, 1, 1)
    assert reported["anomalies"] == {"CORRUPT_OBJECT": 1, "MISSING_OBJECTS": 0}
    (seen,) = rlmm.answers("anomalies")
    assert (seen["kind"], seen["object_key"], seen["run_id"]) == (
        "CORRUPT_OBJECT",
        f"1:{key}",
        reported["run_id"],
    )
    assert f"chunk 1, bytes {MIB} to {2 * MIB - 1}" in seen["detail"]
    code, reported = scrub(rlmm, "--topic", "payments")
    assert (code, reported["verified"]) == (0, 1)
    done = rlmm.sediment("scrub")
    assert (done.returncode, "CORRUPT_OBJECT" in done.stdout) == (1, True)
    named, step = done.stderr.splitlines()
    assert named.startswith(f"CORRUPT_OBJECT: orders-0 segment {seen['segment_id']}: ")
    assert step == "next: `sediment anomalies` lists all"
    [explained] = rlmm.answers("explain", "orders-0", "--offset", 0)
    assert [each["kind"] for each in explained["anomalies"]] == ["CORRUPT_OBJECT"]
    shown = rlmm.sediment("explain", "orders-0", "--offset", 0).stdout
    assert "CORRUPT_OBJECT, last seen " in shown


@pytest.mark.deep
def test_a_repair_makes_a_lost_index_anew(
    rlmm: RlmmProcess, rsm: ServedRsm, store: FilesystemStorage
) -> None:
    """The bytes of this log are no batches: its leader epochs alone can be made anew."""
    tier, (tp,) = SmallTier(rsm.client, rlmm.client), a_topic("orders")
    whole = dict.fromkeys(IndexType, b"") | {IndexType.LEADER_EPOCH: b"0\n1\n0 0\n"}
    tier.copy(segment(tp, 0, segment_size_in_bytes=SIZE), Files(some_bytes(SIZE), whole))
    (key,) = (key for key in keys_in(store, "") if key.endswith(".indexes"))
    store.put(key, b"9\n1\n0 0\n")
    code, reported = scrub(rlmm)
    assert (code, reported["damaged"], reported["repaired"], reported["repairs"]) == (1, 1, 0, [])
    code, reported = scrub(rlmm, "--repair")
    assert (code, reported["damaged"], reported["repaired"]) == (0, 1, 1)
    assert reported["repairs"][0].endswith(": repaired: LEADER_EPOCH")
    assert scrub(rlmm)[0] == 0
    *_, event = rlmm.answers("events", "orders-0")
    assert (event["reason"], event["from_state"]) == ("indexes rebuilt", event["to_state"])


@pytest.mark.deep
def test_a_repair_that_is_killed_is_made_by_the_next(
    rlmm: RlmmProcess, rsm: ServedRsm, store: FilesystemStorage
) -> None:
    tier, (tp,) = SmallTier(rsm.client, rlmm.client), a_topic("orders")
    whole = dict.fromkeys(IndexType, b"") | {IndexType.LEADER_EPOCH: b"0\n1\n0 0\n"}
    made = tier.copy(segment(tp, 0, segment_size_in_bytes=SIZE), Files(some_bytes(SIZE), whole))
    (key,) = (key for key in keys_in(store, "") if key.endswith(".indexes"))
    store.put(key, b"9\n1\n0 0\n")
    addresses = {**rlmm.variables, "SEDIMENT_RLMM": rlmm.address}
    killed = subprocess.run(
        [sys.executable, "-m", "services.cli", "scrub", "--repair"],
        env={**os.environ, **addresses, "SEDIMENT_FAILPOINT": "replacement.copied"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    # RLMM names the first copy, and its log is served as before.
    assert [row.custom_metadata for row in tier.rows(tp)] == [made.custom_metadata]
    assert b"".join(rsm.client.fetch_log_segment(made, 0)) == some_bytes(SIZE)
    assert scrub(rlmm, "--repair")[0] == 0
    code, reported = scrub(rlmm)
    assert (code, reported["damaged"]) == (0, 0)
    (repaired,) = tier.rows(tp)
    assert repaired.custom_metadata != made.custom_metadata
    assert b"".join(rsm.client.fetch_log_segment(repaired, 0)) == some_bytes(SIZE)


def topic_of(rlmm: RlmmProcess, name: str) -> str:
    """Return the prefix of the keys of the topic's objects."""
    (summary,) = rlmm.client.list_partitions(topic=name).partitions
    return summary.topic_id_partition.topic_id.hex


@pytest.mark.deep
def test_unreadable_segment_has_its_own_exit_code(rlmm: RlmmProcess, s3: S3Endpoint) -> None:
    with (
        HttpProxy(s3.endpoint, s3_operation) as proxy,
        serving(settings_for(s3, {"endpoint": proxy.address})) as rsm,
    ):
        rlmm = rlmm.beside(SEDIMENT_RSM=rsm.address)
        fill(rlmm, rsm, "orders", 1)
        proxy.faults.add(Answer(503), operation="GetObject", times=None)
        code, reported = scrub(rlmm)
        assert (code, reported["not_checked"], reported["damaged"]) == (3, 1, 0)
        assert len(reported["reasons"]) == 1
        done = rlmm.sediment("scrub")
        assert (done.returncode, done.stderr) == (3, reported["reasons"][0] + "\n")
    assert rlmm.answers("anomalies") == []


def verify(rlmm: RlmmProcess, partition: str) -> tuple[int, dict[str, Any]]:
    done = rlmm.sediment("verify", partition, "-o", "json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_one_partition_is_verified_and_no_other(rlmm: RlmmProcess, rsm: ServedRsm) -> None:
    fill(rlmm, rsm, "orders", 3)
    fill(rlmm, rsm, "audit", 1)
    code, found = verify(rlmm, "orders-0")
    assert (code, found["segments"], found["verified"]) == (0, 3, 3)
    assert 3 * SIZE < found["read_bytes"] < 4 * SIZE
    assert (found["missing_start_offsets"], found["elsewhere_start_offsets"]) == ([], [])
    assert "the tier has no partition nowhere-0" in rlmm.refusal("verify", "nowhere-0")


def test_damaged_and_missing_segments_of_a_partition_are_found(
    rlmm: RlmmProcess, rsm: ServedRsm, store: FilesystemStorage
) -> None:
    fill(rlmm, rsm, "orders", 3)
    (summary,) = rlmm.client.list_partitions(topic="orders").partitions
    segments = rlmm.client.list_remote_log_segments(summary.topic_id_partition).segments
    lost, damaged = (
        [key for key in keys_in(store, "") if each.remote_log_segment_id.id.hex in key]
        for each in segments[:2]
    )
    assert len(lost) == 3
    assert store.delete(lost) == {}
    (log,) = [key for key in damaged if key.endswith(".log")]
    content = bytearray(store.get(log))
    content[7] ^= 1
    store.delete([log])
    store.put(log, bytes(content))
    code, found = verify(rlmm, "orders-0")
    assert (code, found["verified"], found["damaged"]) == (1, 1, 1)
    assert found["missing_start_offsets"] == [segments[0].start_offset]
    kinds = [each["kind"] for each in rlmm.answers("anomalies")]
    assert sorted(kinds) == ["CORRUPT_OBJECT", "MISSING_OBJECTS"]
    done = rlmm.sediment("verify", "orders-0")
    assert (done.returncode, "no objects of the segments at 0" in done.stderr) == (1, True)
    assert "MISSING_OBJECTS: orders-0 segment " in done.stderr


@pytest.mark.parametrize(
    ("found", "has_damage", "is_complete"),
    [
        (PartitionScrubbed(Scrubbed(), [], []), False, True),
        (PartitionScrubbed(Scrubbed(damaged=1), [], []), True, True),
        (PartitionScrubbed(Scrubbed(), [5], []), True, True),
        (PartitionScrubbed(Scrubbed(), [], [5]), False, False),
        (PartitionScrubbed(Scrubbed(unchecked=1), [], []), False, False),
    ],
)
def test_what_verify_finds_is_damage_or_incomplete(
    found: PartitionScrubbed, has_damage: bool, is_complete: bool
) -> None:
    assert (found.has_damage, found.is_complete) == (has_damage, is_complete)
