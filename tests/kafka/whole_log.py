"""A whole partition: as the leaders among several brokers have it, and as an RLM gives it."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kafka.errors import KafkaError

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.offset_queries import SpecialTime
from services.api.remote_log_manager import (
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    IsolationLevel,
    RemoteLogManager,
)
from services.records.batches import Batch, BatchError, MemoryWindow, walk_batches
from tests.harness.broker_answers import BrokerFetch, broker_answers
from tests.harness.eventually import Background, eventually
from tests.harness.kafka_cluster import ClusterAdmin, KafkaCluster
from tests.kafka.constant_reader import AWAY
from tests.kafka.read_log import records_of

_DEADLINE_MS = 120_000
_FETCH_BYTES = 512 * 1024
_PAUSE_S = 0.2
_SHOWN = 5


@dataclass(frozen=True)
class StoredBatch:
    """A batch as a broker keeps it."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    data: bytes


class BatchLog:
    """Batches of a partition from its first offset on, without a hole."""

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    @property
    def last_epoch(self) -> int | None:
        return self.batches[-1].leader_epoch if self.batches else None

    @property
    def data(self) -> bytes:
        return b"".join(batch.data for batch in self.batches)

    def append(self, batches: Sequence[StoredBatch]) -> None:
        """
        Raises:
            AssertionError: an offset is missing, or comes twice.
        """
        for batch in batches:
            assert batch.base_offset == self.end_offset, f"{batch.base_offset}: {self.end_offset}"
            self.batches.append(batch)

    def cut(self, end_offset: int) -> list[StoredBatch]:
        """Drop what reaches beyond an offset; return it."""
        kept = [batch for batch in self.batches if batch.last_offset < end_offset]
        dropped = self.batches[len(kept) :]
        self.batches = kept
        return dropped


def whole_batches(data: bytes, offset: int) -> list[StoredBatch]:
    """Return the batches of an answer, whose last one may be cut off."""
    found: list[StoredBatch] = []
    try:
        for batch in walk_batches(MemoryWindow(data), 0, len(data), 0, verify=True):
            found.append(_stored(batch))
    except BatchError:
        assert found, f"no batch at {offset}"
    return [batch for batch in found if batch.last_offset >= offset]


def _stored(batch: Batch) -> StoredBatch:
    return StoredBatch(batch.base_offset, batch.last_offset, batch.leader_epoch, bytes(batch.data))


class BrokersLog(BatchLog):
    """All that the leaders of a partition had of it, read from them before they delete it."""

    def __init__(self, brokers: KafkaCluster, name: TopicIdPartition) -> None:
        super().__init__()
        self._brokers = brokers
        self._admin = ClusterAdmin(brokers.bootstrap_servers)
        self._name = name

    def read_on(self) -> int:
        """Read from the leader up to its high watermark; return that."""
        return eventually(self._read_on, _DEADLINE_MS) - 1

    def follow(self) -> set[bytes]:
        """Take the present leader's log for the right one, after an unclean election.

        Returns the keys of the records that it does not have. What the leader has deleted is as it
        was. Nothing may be written meanwhile.
        """
        theirs = eventually(self._on_disk, _DEADLINE_MS)
        end = theirs[-1].last_offset + 1
        old = [batch for batch in self.batches if batch.base_offset >= theirs[0].base_offset]
        same = sum(1 for ours, new in zip(old, theirs, strict=False) if ours == new)
        assert old[:same] == theirs[:same]
        lost = self.cut(theirs[same].base_offset if same < len(theirs) else end)
        self.append(theirs[same:])
        return {
            record.key for batch in lost for _, record in records_of(batch.data) if record.key
        } - {record.key for batch in self.batches for _, record in records_of(batch.data)}

    def _read_on(self) -> int:
        """Return one more than the high watermark, which may be 0; 0 if it was not reached."""
        for batches, answer in self._answers(self.end_offset):
            self.append(batches)
            if self.end_offset >= answer.high_watermark:
                return answer.high_watermark + 1
        return 0

    def _on_disk(self) -> list[StoredBatch]:
        found: list[StoredBatch] = []
        name = self._name
        start = self._admin.offset(name.topic, name.partition, SpecialTime.EARLIEST)
        for batches, answer in self._answers(start):
            found += batches
            if found and found[-1].last_offset + 1 >= answer.high_watermark:
                return found
        return []  # It has nothing, or has gone.

    def _answers(self, offset: int) -> Iterator[tuple[list[StoredBatch], BrokerFetch]]:
        """Fetch from the leader from an offset on; ends with an answer without batches, and when
        the leader has gone.

        Raises:
            AssertionError: the leader answered with an error.
        """
        leader = self._admin.wait_for_leader(self._name.topic, self._name.partition)
        level = IsolationLevel.READ_UNCOMMITTED
        try:
            with broker_answers(self._brokers.broker(leader).bootstrap_servers) as kafka:
                while True:
                    answer = kafka.fetch(self._name, offset, _FETCH_BYTES, level)
                    assert answer.error == 0, f"{self._name} at {offset}: {answer.error}"
                    batches = whole_batches(answer.records, offset) if answer.records else []
                    offset = batches[-1].last_offset + 1 if batches else offset
                    yield batches, answer
                    if not batches:
                        return
        except (KafkaError, OSError):
            return


class LogReader(Background):
    """Reads partitions from one RLM while it is entered, each once and in order, as a client that
    keeps the log: a log that has left RLM's is cut where RLM says.

    Attributes:
        logs: what was read.
        away: answers of an RLM that was not there, did not lead yet, or had no tier.
        cut: how often a log was cut, by partition.
        failures: a sentence for each other answer, the first few.
    """

    def __init__(
        self,
        rlm: RemoteLogManager,
        names: Collection[TopicIdPartition],
        may_be_cut: Collection[TopicIdPartition],
    ) -> None:
        super().__init__()
        self._rlm = rlm
        self._may_be_cut = may_be_cut
        self.logs = {name: BatchLog() for name in names}
        self.away = 0
        self.cut: Counter[TopicIdPartition] = Counter()
        self.failures: list[str] = []

    def run(self) -> None:
        while not self.wait(_PAUSE_S) and len(self.failures) < _SHOWN:
            for name, log in self.logs.items():
                try:
                    while not self.wait(0) and self._read(name, log):
                        pass
                except (AssertionError, BatchError) as e:
                    self.failures.append(f"{name} at {log.end_offset}: {e}")

    def _read(self, name: TopicIdPartition, log: BatchLog) -> bool:
        """Return whether there may be more."""
        wanted = FetchPartition(
            name, log.end_offset, _FETCH_BYTES, last_fetched_epoch=log.last_epoch
        )
        try:
            parts = list(self._rlm.fetch(FetchRequest((wanted,), _FETCH_BYTES)))
        except RemoteStorageError:
            self.away += 1
            return False
        first = parts[0]
        if first.error in AWAY or (first.throttle_time_ms and not first.size_bytes):
            self.away += 1
            return False
        assert first.error is FetchError.NONE, f"{first.error.value}: {first.error_message}"
        if first.diverging_epoch is not None:
            self._cut(name, log, first)
            return True
        data = b"".join(part.record_batches for part in parts)
        log.append(whole_batches(data, log.end_offset) if data else [])
        return bool(data)

    def _cut(self, name: TopicIdPartition, log: BatchLog, part: FetchPart) -> None:
        assert name in self._may_be_cut, f"has left the log of {part.diverging_epoch}"
        assert part.diverging_epoch is not None
        self.cut[name] += 1
        assert log.cut(part.diverging_epoch.end_offset), f"not cut by {part.diverging_epoch}"
