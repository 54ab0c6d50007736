"""Compare replayed producer snapshots with those that a broker wrote, and test the rules apart."""

from itertools import pairwise
from pathlib import Path

import pytest

from services.records.batches import FileWindow, MemoryWindow, walk_batches
from services.records.index_files import (
    EMPTY_PRODUCER_SNAPSHOT,
    ProducerEntry,
    producer_entries,
    producer_snapshot,
)
from services.records.producers import Producers
from tests.harness.world import BUNDLED_LOG
from tests.unit.rlm.kafka_bytes import COMMIT, batch, in_transaction, marker

LOGS = sorted(path for path in BUNDLED_LOG.glob("*-*") if len([*path.glob("*.log")]) > 1)


def by_id(snapshot: bytes) -> dict[int, ProducerEntry]:
    return {entry.producer_id: entry for entry in producer_entries(snapshot)}


def replayed(
    *batches: bytes, snapshot: bytes = EMPTY_PRODUCER_SNAPSHOT
) -> dict[int, ProducerEntry]:
    producers, data = Producers(snapshot), b"".join(batches)
    for each in walk_batches(MemoryWindow(data), 0, len(data), 0, verify=True):
        producers.observe(each)
    return by_id(producers.snapshot())


@pytest.mark.parametrize("folder", LOGS, ids=lambda path: path.name)
def test_a_replayed_snapshot_is_the_brokers(folder: Path) -> None:
    """Kafka forgets a producer that was silent for a day, whose records here are older."""
    logs = sorted(folder.glob("*.log"))
    whole, compared = Producers(), 0
    for log, following in pairwise(logs):
        before = folder / f"{log.stem}.snapshot"
        one = Producers(before.read_bytes() if before.exists() else EMPTY_PRODUCER_SNAPSHOT)
        with FileWindow(log) as window:
            for each in walk_batches(window, 0, window.size_bytes, int(log.stem), verify=False):
                whole.observe(each)
                one.observe(each)
        expected = by_id((folder / f"{following.stem}.snapshot").read_bytes())
        found, since = by_id(whole.snapshot()), by_id(one.snapshot())
        assert {id: found.get(id) for id in expected} == expected
        assert {id: since.get(id) for id in expected} == expected
        silent = [found[id].last_offset for id in found.keys() - expected.keys()]
        assert all(offset < int(following.stem) - 1 for offset in silent)
        compared += 1
    assert compared


def test_an_empty_log_has_kafkas_empty_snapshot() -> None:
    assert Producers().snapshot() == EMPTY_PRODUCER_SNAPSHOT == producer_snapshot([])


def test_a_transaction_is_open_until_its_marker() -> None:
    begun = in_transaction(10, 7, 3)
    assert replayed(begun)[7].first_offset_of_transaction == 10
    further = in_transaction(13, 7, 2)
    assert replayed(begun, further)[7].first_offset_of_transaction == 10
    ended = replayed(begun, further, marker(15, 7, COMMIT))[7]
    assert (ended.first_offset_of_transaction, ended.last_offset, ended.offset_delta) == (-1, 14, 1)


def test_another_epoch_forgets_the_last_batch() -> None:
    before = producer_snapshot([ProducerEntry(7, 3, 41, 99, 4, 1000, 0, -1)])
    after = replayed(marker(100, 7, COMMIT), snapshot=before)[7]
    assert (after.epoch, after.last_sequence, after.last_offset, after.offset_delta) == (
        0,
        -1,
        -1,
        0,
    )


def test_sequences_go_on_at_zero() -> None:
    last = batch(0, 5, producer_id=7, base_sequence=2**31 - 3)
    assert replayed(last)[7].last_sequence == 1


@pytest.mark.parametrize("damage", [b"", b"\0" * 9, producer_snapshot([])[:-1] + b"\1"])
def test_a_damaged_snapshot_is_no_beginning(damage: bytes) -> None:
    with pytest.raises(ValueError, match=r"bytes|version|CRC"):
        Producers(damage)
