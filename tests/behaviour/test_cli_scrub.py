"""Test `sediment scrub` over real services."""

import json
from typing import Any

import pytest

from services.cli.verify import Verified
from services.local.seaweedfs import S3Endpoint
from services.rsm.backends.filesystem import FilesystemStorage
from services.workflows.scrub import Scrubbed
from tests.contract.remote_storage_manager_contract import MIB, Files, some_bytes
from tests.contract.rsm_over_s3 import settings_for
from tests.harness import served_fixtures
from tests.harness.faults import Answer
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy
from tests.harness.processes import RlmmProcess
from tests.harness.served import ServedRsm, serving
from tests.harness.tier import SmallTier, a_topic, segment

SIZE = 2 * MIB + 500

rlmm, rsm, store = served_fixtures.rlmm, served_fixtures.rsm, served_fixtures.store


def scrub(rlmm: RlmmProcess, rsm: ServedRsm, *options: str) -> tuple[int, dict[str, Any]]:
    done = rlmm.sediment("scrub", "--rsm", rsm.address, *options, "-o", "json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def fill(rlmm: RlmmProcess, rsm: ServedRsm, topic: str, segments: int) -> None:
    tier, (tp,) = SmallTier(rsm.client, rlmm.client), a_topic(topic)
    log = some_bytes(SIZE)
    for number in range(segments):
        tier.copy(segment(tp, number, segment_size_in_bytes=SIZE), Files(log))


def test_a_sound_tier_is_verified_in_parts(rlmm: RlmmProcess, rsm: ServedRsm) -> None:
    fill(rlmm, rsm, "orders", 3)
    code, reported = scrub(rlmm, rsm)
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
    parts = [scrub(rlmm, rsm, "--part", f"{part}/2", "--rate", "0") for part in (1, 2)]
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
        for seen in store.list_keys("")
        if seen.endswith(".log") and seen.startswith(topic_of(rlmm, "orders"))
    )
    content = bytearray(store.get(key))
    content[MIB + 7] ^= 1
    store.put(key, bytes(content))
    code, reported = scrub(rlmm, rsm)
    assert (code, reported["verified"], reported["damaged"]) == (1, 1, 1)
    assert reported["anomalies"] == {"CORRUPT_OBJECT": 1, "MISSING_OBJECTS": 0}
    (seen,) = rlmm.answers("anomalies")
    assert (seen["kind"], seen["object_key"], seen["run_id"]) == (
        "CORRUPT_OBJECT",
        f"1:{key}",
        reported["run_id"],
    )
    assert f"chunk 1, bytes {MIB} to {2 * MIB - 1}" in seen["detail"]
    code, reported = scrub(rlmm, rsm, "--topic", "payments")
    assert (code, reported["verified"]) == (0, 1)
    done = rlmm.sediment("scrub", "--rsm", rsm.address)
    assert (done.returncode, "CORRUPT_OBJECT" in done.stdout, done.stderr) == (1, True, "")


def topic_of(rlmm: RlmmProcess, name: str) -> str:
    """Return the prefix of the keys of the topic's objects."""
    (summary,) = rlmm.client.list_partitions(topic=name).partitions
    return summary.topic_id_partition.topic_id.hex


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--part", "3"), "--part: '3' is not I/N"),
        (("--part", "3/2"), "part: must be 1 to 2"),
        (("--part", "0/2"), "part: must be 1 to 2"),
        (("--topic", "nowhere"), "the tier has no topic nowhere"),
        (("--location", "7"), "location 7 is not registered"),
    ],
)
def test_impossible_options_are_refused_in_one_line(
    rlmm: RlmmProcess, rsm: ServedRsm, options: tuple[str, ...], said: str
) -> None:
    assert said in rlmm.refusal("scrub", "--rsm", rsm.address, *options)


@pytest.mark.deep
def test_unreadable_segment_has_its_own_exit_code(rlmm: RlmmProcess, s3: S3Endpoint) -> None:
    with (
        HttpProxy(s3.endpoint, s3_operation) as proxy,
        serving(settings_for(s3, {"endpoint": proxy.address})) as rsm,
    ):
        fill(rlmm, rsm, "orders", 1)
        proxy.faults.add(Answer(503), operation="GetObject", times=None)
        code, reported = scrub(rlmm, rsm)
        assert (code, reported["not_checked"], reported["damaged"]) == (3, 1, 0)
        assert len(reported["reasons"]) == 1
        done = rlmm.sediment("scrub", "--rsm", rsm.address)
        assert (done.returncode, done.stderr) == (3, reported["reasons"][0] + "\n")
    assert rlmm.answers("anomalies") == []


def test_a_service_that_is_away_is_a_failure(rlmm: RlmmProcess) -> None:
    done = rlmm.sediment("scrub", "--rsm", "127.0.0.1:9")
    assert done.returncode == 3
    assert "127.0.0.1:9" in done.stderr


def verify(rlmm: RlmmProcess, rsm: ServedRsm, partition: str) -> tuple[int, dict[str, Any]]:
    done = rlmm.sediment("verify", partition, "--rsm", rsm.address, "-o", "json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_one_partition_is_verified_and_no_other(rlmm: RlmmProcess, rsm: ServedRsm) -> None:
    fill(rlmm, rsm, "orders", 3)
    fill(rlmm, rsm, "audit", 1)
    code, found = verify(rlmm, rsm, "orders-0")
    assert (code, found["segments"], found["verified"]) == (0, 3, 3)
    assert 3 * SIZE < found["read_bytes"] < 4 * SIZE
    assert (found["missing_start_offsets"], found["elsewhere_start_offsets"]) == ([], [])
    assert "the tier has no partition nowhere-0" in rlmm.refusal(
        "verify", "nowhere-0", "--rsm", rsm.address
    )


def test_damaged_and_missing_segments_of_a_partition_are_found(
    rlmm: RlmmProcess, rsm: ServedRsm, store: FilesystemStorage
) -> None:
    fill(rlmm, rsm, "orders", 3)
    (summary,) = rlmm.client.list_partitions(topic="orders").partitions
    segments = rlmm.client.list_remote_log_segments(summary.topic_id_partition).segments
    lost, damaged = (
        [key for key in store.list_keys("") if each.remote_log_segment_id.id.hex in key]
        for each in segments[:2]
    )
    assert len(lost) == 3
    assert store.delete(lost) == {}
    (log,) = [key for key in damaged if key.endswith(".log")]
    content = bytearray(store.get(log))
    content[7] ^= 1
    store.delete([log])
    store.put(log, bytes(content))
    code, found = verify(rlmm, rsm, "orders-0")
    assert (code, found["verified"], found["damaged"]) == (1, 1, 1)
    assert found["missing_start_offsets"] == [segments[0].start_offset]
    kinds = [each["kind"] for each in rlmm.answers("anomalies")]
    assert sorted(kinds) == ["CORRUPT_OBJECT", "MISSING_OBJECTS"]
    done = rlmm.sediment("verify", "orders-0", "--rsm", rsm.address)
    assert (done.returncode, "no objects of the segments at 0" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("scrubbed", "missing", "elsewhere", "code"),
    [
        (Scrubbed(), [], [], 0),
        (Scrubbed(damaged=1), [], [], 1),
        (Scrubbed(), [5], [], 1),
        (Scrubbed(), [], [5], 3),
        (Scrubbed(unchecked=1), [], [], 3),
    ],
)
def test_the_exit_code_of_verify_is_that_of_the_worst_finding(
    scrubbed: Scrubbed, missing: list[int], elsewhere: list[int], code: int
) -> None:
    assert Verified(scrubbed, missing, elsewhere).exit_code == code
