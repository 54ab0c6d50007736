"""Test read_committed over a log of Kafka's, from the disk, from the tier, and partly from each."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demos.stage import link_log_dir
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    AbortedTransaction,
    FetchError,
    RemoteLogManager,
)
from services.records.index_files import AbortedTxn
from tests.harness.committed_reads import (
    READ_COMMITTED,
    batches_in,
    committed_answer,
    committed_in,
    committed_offsets,
)
from tests.harness.databases import Databases
from tests.harness.ship_stack import (
    BUNDLED,
    EVERYTHING,
    Stack,
    bundled_name,
    bytes_of,
    fetch,
    running_stack,
)
from tests.unit.rlm.kafka_bytes import (
    ABORT,
    COMMIT,
    NAME,
    PartitionFiles,
    batch,
    in_transaction,
    marker,
    write_log_dir,
)

PAYMENTS = [bundled_name("payments", number) for number in (0, 1)]
LIMITS = [2_000, 1024 * 1024]


@pytest.fixture(scope="module")
def payments(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Stack, Path]]:
    """The bundled topic of transactions, with every rolled segment in the tier."""
    directory = tmp_path_factory.mktemp("payments")
    link_log_dir(BUNDLED, directory / "logs")
    for folder in (directory / "logs").iterdir():
        if folder.is_dir() and not folder.name.startswith("payments-"):
            shutil.rmtree(folder)
    url = databases.take()
    with running_stack(url, directory / "objects") as stack:
        stack.ship(directory / "logs")
        yield stack, directory / "logs"
    databases.give_back(url)


def on_disk(stack: Stack, log_dir: Path, scratch: Path) -> RemoteLogManager:
    return stack.rlm(log_dir)


def half_on_disk(stack: Stack, log_dir: Path, scratch: Path) -> RemoteLogManager:
    link_log_dir(log_dir, scratch / "half")
    for folder in (scratch / "half").glob("payments-*"):
        logs = sorted(folder.glob("*.log"))
        for log in logs[: len(logs) // 2]:
            for file in folder.glob(f"{log.stem}.*"):
                file.unlink()
    return stack.rlm(scratch / "half")


def active_on_disk(stack: Stack, log_dir: Path, scratch: Path) -> RemoteLogManager:
    link_log_dir(log_dir, scratch / "active")
    for folder in (scratch / "active").glob("payments-*"):
        for log in sorted(folder.glob("*.log"))[:-1]:
            for file in folder.glob(f"{log.stem}.*"):
                file.unlink()
    return stack.rlm(scratch / "active")


@pytest.mark.parametrize("place", [on_disk, half_on_disk, active_on_disk])
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("name", PAYMENTS, ids=str)
def test_a_reader_gets_the_committed_records_wherever_they_are(
    payments: tuple[Stack, Path],
    tmp_path: Path,
    name: TopicIdPartition,
    limit: int,
    place: Callable[[Stack, Path, Path], RemoteLogManager],
) -> None:
    stack, log_dir = payments
    truth = committed_in(bytes_of(log_dir / f"payments-{name.partition}"))
    assert committed_offsets(place(stack, log_dir, tmp_path), name, 0, limit) == truth


@pytest.mark.parametrize("name", PAYMENTS, ids=str)
def test_a_read_from_any_offset_skips_what_was_aborted(
    payments: tuple[Stack, Path], tmp_path: Path, name: TopicIdPartition
) -> None:
    stack, log_dir = payments
    committed, stable = committed_in(bytes_of(log_dir / f"payments-{name.partition}"))
    rlm = half_on_disk(stack, log_dir, tmp_path)
    for offset in range(0, stable, 53):
        expected = {each for each in committed if each >= offset}
        assert committed_offsets(rlm, name, offset, 2_500) == (expected, stable)


@pytest.mark.parametrize("name", PAYMENTS, ids=str)
def test_the_tier_alone_ends_at_the_first_transaction_whose_end_it_lacks(
    payments: tuple[Stack, Path], name: TopicIdPartition
) -> None:
    stack, log_dir = payments
    logs = sorted((log_dir / f"payments-{name.partition}").glob("*.log"))
    truth = committed_in(b"".join(log.read_bytes() for log in logs[:-1]))
    assert committed_offsets(stack.tier_reader(), name) == truth


def test_each_part_has_the_aborted_transactions_of_its_records(
    payments: tuple[Stack, Path],
) -> None:
    stack, log_dir = payments
    (name, _) = PAYMENTS
    parts = committed_answer(stack.rlm(log_dir), name, 0, EVERYTHING)
    aborted = [each for part in parts for each in part.aborted_transactions]
    assert aborted
    assert len(set(aborted)) == len(aborted)
    uncommitted = fetch(stack.rlm(log_dir), 0, name)
    assert {part.aborted_transactions for part in uncommitted} == {()}
    assert uncommitted[0].record_batches == parts[0].record_batches


@pytest.fixture
def files(log_dir: Path) -> PartitionFiles:
    """A transaction of producer 9 from offset 1 that ends two segments later; producer 8's stays
    open."""
    files = PartitionFiles(log_dir)
    files.segment(0, [batch(0), in_transaction(1, 9), batch(2)])
    files.snapshot(3, {9: 1})
    files.segment(3, [batch(3), in_transaction(4, 9)])
    files.snapshot(5, {9: 1})
    files.segment(5, [marker(5, 9, ABORT), in_transaction(6, 8), batch(7)])
    files.file(5, ".txnindex").write_bytes(AbortedTxn(9, 1, 5, 6).to_bytes())
    return files


def test_the_end_of_a_transaction_may_be_segments_behind_its_records(
    stack: Stack, files: PartitionFiles
) -> None:
    rlm = stack.rlm()
    (part,) = fetch(rlm, 0, max_bytes=1, isolation=READ_COMMITTED)
    assert part.aborted_transactions == ()
    (part,) = fetch(rlm, 1, max_bytes=1, isolation=READ_COMMITTED)
    assert part.aborted_transactions == (AbortedTransaction(1, 9),)
    (part,) = fetch(rlm, 4, max_bytes=1, isolation=READ_COMMITTED)
    assert part.aborted_transactions == (AbortedTransaction(1, 9),)


def test_a_reader_stops_before_an_open_transaction(stack: Stack, files: PartitionFiles) -> None:
    (part,) = fetch(stack.rlm(), 0, isolation=READ_COMMITTED)
    assert part.last_stable_offset == 6
    assert list(batches_in(part.record_batches))[-1].last_offset == 5
    (part,) = fetch(stack.rlm(), 6, isolation=READ_COMMITTED)
    assert (part.error, part.record_batches) == (FetchError.NONE, b"")
    (part,) = fetch(stack.rlm(), 6)
    assert part.record_batches


def test_a_damaged_transaction_index_is_an_error_and_not_a_committed_record(
    stack: Stack, files: PartitionFiles
) -> None:
    files.segment(8, [batch(8)])
    files.snapshot(8, {8: 6})
    path = files.file(5, ".txnindex")
    path.write_bytes(path.read_bytes()[:-1])
    rlm = stack.rlm()
    (part,) = fetch(rlm, 0, isolation=READ_COMMITTED)
    assert (part.error, part.record_batches) == (FetchError.CORRUPT_MESSAGE, b"")
    assert str(path) in part.error_message
    (part,) = fetch(rlm, 0)
    assert part.error is FetchError.NONE


def test_a_transaction_section_that_is_damaged_in_the_store_is_rebuilt_from_the_log(
    stack: Stack, files: PartitionFiles
) -> None:
    entries = files.file(5, ".txnindex").read_bytes()
    files.snapshot(8, {8: 6})
    files.segment(8, [marker(8, 8, COMMIT)])
    files.snapshot(9)
    files.segment(9, [batch(9)])
    stack.ship()
    segment = next(each for each in stack.segments() if each.start_offset == 5)
    (indexes,) = stack.objects.rglob(f"*{segment.remote_log_segment_id.id.hex}*.indexes")
    stored = bytearray(indexes.read_bytes())
    at = stored.index(entries)
    stored[at + len(entries) - 1] ^= 1
    indexes.write_bytes(stored)
    (part,) = fetch(stack.tier_reader(), 5, isolation=READ_COMMITTED)
    (local,) = fetch(stack.rlm(), 5, isolation=READ_COMMITTED)
    assert part.error is FetchError.NONE
    assert part.aborted_transactions == local.aborted_transactions != ()
    assert local.record_batches.startswith(part.record_batches)
    assert part.record_batches


def test_the_last_entry_of_an_active_segments_index_may_be_half_written(
    stack: Stack, files: PartitionFiles
) -> None:
    with files.file(5, ".txnindex").open("ab") as file:
        file.write(AbortedTxn(8, 6, 8, 9).to_bytes()[:20])
    (part,) = fetch(stack.rlm(), 0, isolation=READ_COMMITTED)
    assert part.aborted_transactions == (AbortedTransaction(1, 9),)


def test_a_commit_is_no_aborted_transaction(tmp_path: Path, stack: Stack) -> None:
    log_dir = write_log_dir(tmp_path / "committed")
    files = PartitionFiles(log_dir)
    files.segment(0, [in_transaction(0, 9), marker(1, 9, COMMIT)])
    (part,) = fetch(stack.rlm(log_dir), 0, NAME, isolation=READ_COMMITTED)
    assert (part.aborted_transactions, part.last_stable_offset) == ((), 2)
