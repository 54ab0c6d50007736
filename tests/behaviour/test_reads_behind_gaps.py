"""Test that readers go on behind offsets that the tier will never have."""

import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import KafkaError, TopicPartition

from services.api.offset_queries import OffsetQueries, OffsetQuery, SpecialTime
from services.api.partitions import OffsetGap
from services.api.remote_log_manager import FetchError
from services.client import TierConsumer
from services.rlm.copy.ship import ship
from services.rlm.manager import BrokerRemoteLogManager
from tests.harness.doors import serving_consumers
from tests.harness.kafka_client import CLIENT_TIMEOUT_S, Cluster
from tests.harness.processes import serving_rlmm
from tests.harness.sediment_command import Completed, sediment
from tests.harness.served import served_rlm
from tests.harness.ship_stack import ONE_TRY, Stack, read
from tests.harness.synthetic_log import honest_batch
from tests.harness.troubles import GapsRefused
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles

KEPT = [*range(10), *range(20, 25), *range(30, 41)]
"""The offsets that are left: 0-9 and 20-24 in the tier, 30-40 on the disk."""

GAPS = (OffsetGap(10, 19), OffsetGap(25, 29))


def hold(files: PartitionFiles, base: int, rolled: int = 0, active: int = 1) -> None:
    """Let the log begin at `base`: so many offsets rolled, then so many active."""
    for path in files.path.glob(f"{'[0-9]' * 20}.*"):
        path.unlink()
    end = base + rolled
    for first, last in ((base, end), (end, end + active))[not rolled :]:
        files.snapshot(first)
        files.segment(first, [honest_batch(at, [b"value"]) for at in range(first, last)])


@pytest.fixture
def rlm(stack: Stack) -> BrokerRemoteLogManager:
    """Provide an RLM of a log with a gap in the tier, and one between the tier and the disk."""
    files = PartitionFiles(stack.log_dir)
    for base, rolled in ((0, 10), (20, 5)):
        hold(files, base, rolled)
        stack.ship()
    hold(files, 30, active=11)
    stack.ship()
    assert stack.ranges() == [(0, 9), (20, 24)]
    assert stack.rlmm.partition_state(NAME).value.gaps == GAPS
    return stack.rlm()


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("start", [0, 5, 10, 15, 19, 27])
def test_a_consumer_reads_each_record_once_and_in_order(
    rlm: BrokerRemoteLogManager, start: int, isolation: str
) -> None:
    found = list[int | None]()
    with (
        serving_consumers(rlm) as address,
        closing(Cluster(address).consumer(isolation, **{"auto.offset.reset": "earliest"})) as of,
    ):
        of.assign([TopicPartition(NAME.topic, NAME.partition, start)])
        while (message := of.poll(CLIENT_TIMEOUT_S)) is not None and len(found) <= len(KEPT):
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                break
            found.append(message.offset())
    assert found == [offset for offset in KEPT if offset >= start]


def test_the_tiers_records_behind_a_gap_are_read_without_a_disk(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    whole = read(rlm, 0)
    assert isinstance(whole, bytes)
    tier = read(stack.tier_reader(), 0)
    assert isinstance(tier, bytes)
    assert whole.startswith(tier)
    behind = read(stack.tier_reader(), 12)
    assert isinstance(behind, bytes)
    assert tier.endswith(behind)
    (earliest,) = rlm.list_offsets(OffsetQueries((OffsetQuery(NAME, SpecialTime.EARLIEST),)))
    assert earliest.offset == 0


def test_a_loss_that_is_not_recorded_yet_is_waited_for(stack: Stack) -> None:
    """OFFSET_OUT_OF_RANGE would let a consumer begin again, or skip all."""
    files = PartitionFiles(stack.log_dir)
    hold(files, 0, 10)
    stack.ship()
    hold(files, 20, 5)
    ship([stack.log_dir], stack.rsm, GapsRefused(stack.rlmm), ONE_TRY)
    rlms = stack.rlm(), stack.tier_reader()
    for rlm in rlms:
        assert read(rlm, 12) is FetchError.TIERED_STORAGE_NOT_AVAILABLE
    stack.ship()
    for rlm in rlms:
        assert isinstance(read(rlm, 12), bytes)


def test_a_gap_at_the_beginning_of_the_log_is_passed(stack: Stack) -> None:
    """A consumer had read all that retention then deleted, before more was lost."""
    files = PartitionFiles(stack.log_dir)
    hold(files, 0, 10)
    stack.ship()
    stack.rlmm.raise_log_start_offset(NAME, 10)
    hold(files, 20, 5)
    stack.ship()
    assert stack.rlmm.partition_state(NAME).value.gaps == (OffsetGap(10, 19),)
    for rlm in (stack.rlm(), stack.tier_reader()):
        assert isinstance(read(rlm, 10), bytes)
        assert read(rlm, 9) is FetchError.OFFSET_OUT_OF_RANGE


def test_a_tier_consumer_names_what_is_missing_before_a_record(rlm: BrokerRemoteLogManager) -> None:
    with served_rlm(rlm) as (_, address), TierConsumer(address) as consumer:
        found = list(consumer.records(NAME.topic, NAME.partition))
    assert [record.offset for record in found] == KEPT
    assert {r.offset: r.missing for r in found if r.missing} == {20: (10, 19), 30: (25, 29)}


@pytest.fixture
def addresses(rlm: BrokerRemoteLogManager, database_url: str) -> Iterator[tuple[str, str]]:
    with served_rlm(rlm) as (_, address), serving_rlmm(database_url) as rlmm:
        yield f"--rlm={address}", f"--rlmm={rlmm.address}"


def fetched(addresses: tuple[str, str], *options: str) -> Completed:
    return sediment("fetch", "t-0", *addresses, "--from=0", "--to=end", *options)


def test_fetch_names_the_gaps_that_it_passes(addresses: tuple[str, str]) -> None:
    done = fetched(addresses)
    assert [int(line.split()[0]) for line in done.stdout.splitlines()] == KEPT
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert "offsets 10 to 19 are missing: lost before they were copied" in first
    assert "offsets 25 to 29 are missing: lost before they were copied" in second


def test_fetch_names_the_gaps_in_json(addresses: tuple[str, str]) -> None:
    printed = [json.loads(line) for line in fetched(addresses, "-o", "json").stdout.splitlines()]
    named = {each["offset"]: each.get("missing_before") for each in printed}
    assert {offset: gap for offset, gap in named.items() if gap} == {
        20: {"start_offset": 10, "end_offset": 19},
        30: {"start_offset": 25, "end_offset": 29},
    }
