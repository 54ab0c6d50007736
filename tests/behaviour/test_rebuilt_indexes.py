"""Test reads of the tier whose indexes are lost or damaged, over a log of Kafka's."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demos.stage import link_log_dir
from services.api.offset_queries import OffsetQueries, OffsetQuery
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.records.index_files import parse_aborted_txns, producer_entries
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.tier import Tier
from services.rlm.tier_lineage import TierLineage
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.locations import Location, Locations
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.upload import PartBuffers
from tests.contract.remote_storage_manager_contract import index
from tests.harness.committed_reads import READ_COMMITTED
from tests.harness.databases import Databases
from tests.harness.published import published
from tests.harness.ship_stack import BUNDLED, Stack, bundled_name, fetch, running_stack

NAME = bundled_name("payments", 1)


@pytest.fixture
def shipped(databases: Databases, tmp_path: Path) -> Iterator[Stack]:
    """The bundled partition of transactions that span segments, with its segments in the tier."""
    link_log_dir(BUNDLED, tmp_path / "logs")
    for folder in (tmp_path / "logs").iterdir():
        if folder.is_dir() and folder.name != "payments-1":
            shutil.rmtree(folder)
    url = databases.take()
    with running_stack(url, tmp_path / "objects") as stack:
        stack.ship(tmp_path / "logs")
        yield stack
    databases.give_back(url)


def lost(indexes: Path) -> None:
    indexes.unlink()


def damaged(indexes: Path) -> None:
    indexes.write_bytes(b"\xff" * indexes.stat().st_size)


def answers(rlm: BrokerRemoteLogManager, stack: Stack) -> list[object]:
    """Return what look-ups by offset and by time, and committed reads, find."""
    segments, found = stack.segments(NAME), list[object]()
    for offset in range(0, segments[-1].end_offset + 1, 3):  # a batch has at least 4 records
        (part,) = fetch(rlm, offset, NAME, max_bytes=1)
        found.append((part.error, part.record_batches))
        (part,) = fetch(rlm, offset, NAME, max_bytes=1, isolation=READ_COMMITTED)
        found.append((part.error, part.record_batches, part.aborted_transactions))
    last_ms = max(segment.max_timestamp_ms for segment in segments)
    for time_ms in (0, *(segment.max_timestamp_ms for segment in segments), last_ms + 1):
        found.append(rlm.list_offsets(OffsetQueries((OffsetQuery(NAME, time_ms),))))
    return found


@pytest.mark.parametrize("harm", [lost, damaged])
@pytest.mark.parametrize("first", [0, 1])
def test_each_look_up_finds_the_same_without_the_indexes(
    shipped: Stack, harm: Callable[[Path], None], first: int
) -> None:
    truth = answers(shipped.tier_reader(rsm=new_rsm(shipped)), shipped)
    harmed = shipped.segments(NAME)[first:-1:2]
    for segment in harmed:
        harm(indexes_of(shipped, segment))
    before = rebuilds()
    assert answers(shipped.tier_reader(rsm=new_rsm(shipped)), shipped) == truth
    after = rebuilds()
    assert after["offset"] - before["offset"] == len(harmed)
    assert all(after[kind] > before[kind] for kind in before)


@pytest.mark.parametrize("harm", [lost, damaged])
@pytest.mark.parametrize("kind", [IndexType.TRANSACTION, IndexType.LEADER_EPOCH])
def test_a_rebuilt_index_is_that_of_the_copy(
    shipped: Stack, kind: IndexType, harm: Callable[[Path], None]
) -> None:
    for segment in aborted_in(shipped):
        expected = index(new_rsm(shipped), segment, kind)
        path = indexes_of(shipped, segment)
        sound = path.read_bytes()
        harm(path)
        assert index(new_rsm(shipped), segment, kind) == expected
        path.write_bytes(sound)


def test_a_rebuilt_snapshot_has_the_producers_of_the_copy(shipped: Stack) -> None:
    """It may have more: a broker forgets those that were silent for a day."""
    for segment in shipped.segments(NAME):
        expected = index(new_rsm(shipped), segment, IndexType.PRODUCER_SNAPSHOT)
        path = indexes_of(shipped, segment)
        sound = path.read_bytes()
        path.unlink()
        found = index(new_rsm(shipped), segment, IndexType.PRODUCER_SNAPSHOT)
        assert set(producer_entries(found)) >= set(producer_entries(expected)) != set()
        path.write_bytes(sound)


def test_without_any_snapshot_a_transaction_counts_from_the_segments_start(
    shipped: Stack,
) -> None:
    for segment in shipped.segments(NAME):
        indexes_of(shipped, segment).unlink()
    rsm = new_rsm(shipped)
    for segment in aborted_in(shipped):
        for entry in parse_aborted_txns(index(rsm, segment, IndexType.TRANSACTION)):
            assert segment.start_offset <= entry.first_offset < entry.last_offset


def test_the_tiers_history_is_known_without_its_index(shipped: Stack) -> None:
    newest = shipped.segments(NAME)[-1]
    tier = Tier(newest=newest)
    expected = TierLineage(new_rsm(shipped)).of(tier)
    indexes_of(shipped, newest).unlink()
    assert TierLineage(new_rsm(shipped)).of(tier) == expected
    assert expected.entries


def new_rsm(stack: Stack) -> ObjectRemoteStorageManager:
    """Open the tier by an RSM that has read nothing of it yet."""
    locations = Locations(Location(1, FilesystemStorage(stack.objects), ""))
    return ObjectRemoteStorageManager(locations, PartBuffers(4, 8 * 1024 * 1024, 10_000), 2)


def indexes_of(stack: Stack, segment: RemoteLogSegmentMetadata) -> Path:
    (path,) = stack.objects.rglob(f"*{segment.remote_log_segment_id.id.hex}*.indexes")
    return path


def aborted_in(stack: Stack) -> list[RemoteLogSegmentMetadata]:
    return [each for each in stack.segments(NAME) if not each.txn_idx_empty]


def rebuilds() -> dict[str, float]:
    name = "sediment_rsm_index_rebuilds_total"
    kinds = ("offset", "timestamp", "transaction")
    return {kind: published(name, {"index": kind}) for kind in kinds}
