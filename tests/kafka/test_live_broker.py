"""Ship what a running broker has rolled; read all of it back when the local segments are gone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.api.remote_log_manager import RemoteLogManager
from services.api.remote_storage_manager import IndexType
from services.rlm.kafka_log.partition_dir import list_segments, read_side_file
from tests.data.kafka_log_content import TOPICS
from tests.harness.kafka_client import Topic
from tests.kafka.records import consumed, fetched, sources
from tests.kafka.tiered_broker import (
    TieredBroker,
    produce_segments,
    ranges_in_tier,
    ranges_on_disk,
    rolled,
)

pytestmark = pytest.mark.kafka

DOZENS = 70
BY_NAME = pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)


@pytest.fixture(scope="module")
def shipped(tier: TieredBroker) -> TieredBroker:
    """After one `ship` of all topics that the bundled log has too."""
    tier.ship(*TOPICS)
    return tier


@pytest.fixture(scope="module")
def without_rolled(
    shipped: TieredBroker, tmp_path_factory: pytest.TempPathFactory
) -> RemoteLogManager:
    return shipped.without_rolled_segments(tmp_path_factory.mktemp("links"))


def test_exactly_the_rolled_segments_are_finished(shipped: TieredBroker) -> None:
    for name, folder in shipped.partitions(*TOPICS).items():
        assert ranges_in_tier(shipped.finished(name)) == ranges_on_disk(folder), name


def test_there_was_something_to_ship(shipped: TieredBroker) -> None:
    assert sum(len(rolled(path)) for path in shipped.partitions(*TOPICS).values()) >= DOZENS


@BY_NAME
def test_a_remote_segment_is_the_brokers_file_byte_for_byte(
    shipped: TieredBroker, topic: Topic
) -> None:
    for name, folder in shipped.partitions(topic).items():
        for remote, local in zip(shipped.finished(name), rolled(folder), strict=True):
            stored = b"".join(shipped.rsm.fetch_log_segment(remote, 0))
            assert stored == local.log_path.read_bytes(), remote


@BY_NAME
@pytest.mark.parametrize(
    ("index_type", "suffix"),
    [
        (IndexType.OFFSET, ".index"),
        (IndexType.TIMESTAMP, ".timeindex"),
        (IndexType.TRANSACTION, ".txnindex"),
    ],
)
def test_a_remote_index_is_the_brokers_file_byte_for_byte(
    shipped: TieredBroker, topic: Topic, index_type: IndexType, suffix: str
) -> None:
    for name, folder in shipped.partitions(topic).items():
        for remote, local in zip(shipped.finished(name), rolled(folder), strict=True):
            stored = shipped.index(remote, index_type)
            assert stored == (read_side_file(local.file(suffix)) or b""), remote


@BY_NAME
def test_every_record_is_read_back_as_a_consumer_reads_it_from_the_broker(
    shipped: TieredBroker, without_rolled: RemoteLogManager, topic: Topic
) -> None:
    for name in shipped.partitions(topic):
        assert fetched(without_rolled, name, 0) == consumed(shipped.cluster, name), name


@BY_NAME
def test_rolled_records_are_read_from_the_tier_and_the_rest_from_disk(
    shipped: TieredBroker, without_rolled: RemoteLogManager, topic: Topic
) -> None:
    for name, folder in shipped.partitions(topic).items():
        active = list_segments(folder)[-1].base_offset
        found = sources(without_rolled, name, 0)
        expected = {offset: "REMOTE" if offset < active else "LOCAL" for offset in found}
        assert found == expected, name


@BY_NAME
def test_rlm_sees_the_bounds_that_a_client_gets(shipped: TieredBroker, topic: Topic) -> None:
    for name in shipped.partitions(topic):
        assert shipped.bounds(name) == shipped.cluster.offsets(name.topic, name.partition), name


def test_a_rerun_touches_neither_metadata_nor_objects(shipped: TieredBroker) -> None:
    names = list(shipped.partitions(*TOPICS))
    before = [shipped.rlmm.list_remote_log_segments(name) for name in names], shipped.objects()
    report = shipped.ship(*TOPICS)
    assert sum(partition.copied_segments for partition in report.partitions) == 0
    after = [shipped.rlmm.list_remote_log_segments(name) for name in names], shipped.objects()
    assert after == before


def test_shipping_and_reading_change_nothing_on_the_brokers_disk(
    tier: TieredBroker, tmp_path: Path
) -> None:
    topic = Topic("untouched", 1, 8192)
    name, _ = tier.create(topic)
    produce_segments(tier.cluster, topic)
    folders = list(tier.partitions(*TOPICS, topic).values())
    before = list(files_of_rolled_segments(folders))
    tier.ship(*TOPICS, topic)
    fetched(tier.without_rolled_segments(tmp_path), name, 0)
    assert list(files_of_rolled_segments(folders)) == before


def test_the_broker_takes_and_serves_records_after_its_log_was_shipped(tier: TieredBroker) -> None:
    topic = Topic("still-alive", 1, 8192)
    name, _ = tier.create_shipped(topic)
    before = consumed(tier.cluster, name)
    produce_segments(tier.cluster, topic)
    after = consumed(tier.cluster, name)
    assert after[: len(before)] == before
    assert len(after) > len(before)


def test_ship_keeps_up_with_a_broker_that_writes_all_the_while(
    tier: TieredBroker, tmp_path: Path
) -> None:
    topic = Topic("in-motion", 1, 8192)
    name, folder = tier.create(topic)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(produce_segments, tier.cluster, topic, records=50)
        while not writing.done():
            tier.ship(topic)
        writing.result()
    tier.ship(topic)
    assert ranges_in_tier(tier.finished(name)) == ranges_on_disk(folder)
    assert fetched(tier.without_rolled_segments(tmp_path), name, 0) == consumed(tier.cluster, name)


def files_of_rolled_segments(folders: list[Path]) -> Iterator[tuple[Path, int, int, int]]:
    """Path, inode, size and time of change of each file but those of active segments."""
    for folder in folders:
        active = list_segments(folder)[-1].base_offset
        for path in sorted(folder.iterdir()):
            if not path.name.startswith(f"{active:020}"):
                status = path.stat()
                yield path, status.st_ino, status.st_size, status.st_mtime_ns
