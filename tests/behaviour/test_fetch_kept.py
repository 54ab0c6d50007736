"""Test `sediment fetch --kept`: the records of what a broker deleted, from the store itself."""

import json

import pytest

from services.api.calls import MutationContext
from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata
from services.api.topic_config import RetentionOwner
from tests.contract.remote_storage_manager_contract import Files
from tests.contract.rlmm.segments import DELETE_FINISHED, DELETE_STARTED, move
from tests.harness import served_fixtures
from tests.harness.processes import RlmmProcess
from tests.harness.served import ServedRsm
from tests.harness.synthetic_log import honest_batch
from tests.harness.tier import SmallTier, a_topic, segment

BY_BROKER = MutationContext(retention_owner=RetentionOwner.BROKER)

rlmm, rsm, store = served_fixtures.rlmm_with_rsm, served_fixtures.rsm, served_fixtures.store


@pytest.fixture
def kept(rlmm: RlmmProcess, rsm: ServedRsm) -> list[RemoteLogSegmentMetadata]:
    """Three segments of one partition, the first two deleted by a broker, of which one is twice."""
    (tp,) = a_topic("orders")
    tier = SmallTier(rsm.client, rlmm.client)
    made = [copied(tier, tp, number) for number in (0, 1, 1, 2)]
    for each in made[:3]:
        move(rlmm.client, each, DELETE_STARTED, DELETE_FINISHED, context=BY_BROKER)
    return made


def copied(tier: SmallTier, tp: TopicIdPartition, number: int) -> RemoteLogSegmentMetadata:
    first = segment(tp, number)
    values = [b"value %d" % offset for offset in range(first.start_offset, first.end_offset + 1)]
    log = b"".join(
        honest_batch(first.start_offset + at, values[at : at + 10])
        for at in range(0, len(values), 10)
    )
    return tier.copy(segment(tp, number, segment_size_in_bytes=len(log)), Files(log))


def offsets(rlmm: RlmmProcess, *options: str) -> list[int]:
    done = rlmm.sediment("fetch", *options, "--kept", "-o", "json")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(each["value"] == f"value {each['offset']}" for each in records)
    return [each["offset"] for each in records]


def test_every_record_of_what_is_kept_is_printed_once(
    rlmm: RlmmProcess, kept: list[RemoteLogSegmentMetadata]
) -> None:
    first, last = kept[0].start_offset, kept[1].end_offset
    assert offsets(rlmm, "orders-0") == [*range(first, last + 1)]
    assert offsets(rlmm, "orders", "--offset", "95", "-c", "7") == [*range(95, 102)]


def test_an_object_that_the_bucket_lost_is_named(
    rlmm: RlmmProcess, rsm: ServedRsm, kept: list[RemoteLogSegmentMetadata]
) -> None:
    rsm.client.delete_log_segment_data(kept[0])
    done = rlmm.sediment("fetch", "orders-0", "--kept")
    assert done.returncode != 0
    assert kept[0].remote_log_segment_id.id.hex in done.stderr.replace("-", "")


@pytest.mark.parametrize("place", [("--last", "3"), ("--from", "beginning"), ("--follow",)])
def test_it_has_no_other_place_than_an_offset(rlmm: RlmmProcess, place: tuple[str, ...]) -> None:
    assert "--kept: give no other place" in rlmm.refusal("fetch", "orders-0", "--kept", *place)


def test_what_is_not_kept_is_said(rlmm: RlmmProcess) -> None:
    done = rlmm.sediment("fetch", "nothing-0", "--kept")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing of it is kept" in done.stderr
