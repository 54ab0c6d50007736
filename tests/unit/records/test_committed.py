"""Test which batches a reader of committed records skips."""

from services.api.remote_log_manager import AbortedTransaction
from services.records.committed import CommittedReader
from tests.harness.committed_reads import batches_in
from tests.unit.rlm.kafka_bytes import ABORT, COMMIT, batch, in_transaction, marker

LOG = b"".join(
    [
        in_transaction(0, 8),
        in_transaction(1, 9),
        batch(2),
        marker(3, 9, ABORT),
        in_transaction(4, 9),
        marker(5, 8, ABORT),
        marker(6, 9, COMMIT),
        in_transaction(7, 8),
        marker(8, 8, COMMIT),
    ]
)


def kept(aborted: list[AbortedTransaction]) -> list[int]:
    reader = CommittedReader()
    reader.add(aborted)
    return [each.base_offset for each in batches_in(LOG) if not reader.skips(each)]


def test_an_aborted_transaction_is_skipped_up_to_its_end_and_no_further() -> None:
    assert kept([AbortedTransaction(1, 9)]) == [0, 2, 4, 7]
    assert kept([AbortedTransaction(0, 8)]) == [1, 2, 4, 7]
    assert kept([AbortedTransaction(1, 9), AbortedTransaction(0, 8)]) == [2, 4, 7]


def test_control_batches_have_no_records_for_a_reader() -> None:
    assert kept([]) == [0, 1, 2, 4, 7]


def test_a_transaction_that_is_named_twice_is_the_same() -> None:
    assert kept([AbortedTransaction(1, 9), AbortedTransaction(1, 9)]) == [0, 2, 4, 7]


def test_a_transaction_of_a_later_part_begins_with_its_first_offset() -> None:
    reader = CommittedReader()
    skipped = []
    for each in batches_in(LOG):
        if each.base_offset == 4:
            reader.add([AbortedTransaction(4, 9)])
        if reader.skips(each) and not each.is_control:
            skipped.append(each.base_offset)
    assert skipped == [4]
