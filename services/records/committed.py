"""Find the batches that a reader of committed records skips."""

from collections.abc import Iterable
from heapq import heappop, heappush

from services.api.remote_log_manager import AbortedTransaction
from services.records.batches import Batch
from services.records.decode import Marker, control_marker


class CommittedReader:
    """Skip the batches of aborted transactions, as Kafka's consumer does. Not thread-safe.

    It gets the batches of an answer in their order, control batches included, and before each of
    them the aborted transactions that came with it.

    Source: CompletedFetch.nextFetchedRecord.
    """

    def __init__(self) -> None:
        self._not_begun: list[AbortedTransaction] = []
        self._aborted_producers: set[int] = set()

    def add(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add aborted transactions; one that is added twice is the same."""
        for transaction in aborted:
            heappush(self._not_begun, transaction)

    def skips(self, batch: Batch) -> bool:
        """Return whether a reader gets no record of the next batch."""
        while self._not_begun and self._not_begun[0].first_offset <= batch.last_offset:
            self._aborted_producers.add(heappop(self._not_begun).producer_id)
        if batch.is_control:
            if control_marker(batch) is Marker.ABORT:
                self._aborted_producers.discard(batch.producer_id)
            return True
        return batch.is_transactional and batch.producer_id in self._aborted_producers
