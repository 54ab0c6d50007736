"""Producers of every kind that write while a broker is restarted and killed under them."""

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from confluent_kafka import KafkaException, Producer

from demos.kafka_client import KafkaClientError
from tests.harness.eventually import Background, eventually
from tests.harness.kafka_client import (
    CLIENT_TIMEOUT_S,
    CODECS,
    Cluster,
    Record,
    Topic,
    send_batch,
)

_PAUSE_S = 0.04
_RECORDS_PER_BATCH = 4
_BATCHES_OF_A_TRANSACTION = 3
RECORDS_PER_TRANSACTION = _BATCHES_OF_A_TRANSACTION * _RECORDS_PER_BATCH
_VALUE_BYTES = 900
# A broker that comes back is found at once.
_IMPATIENT: dict[str, Any] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
}
# Who waits while nobody writes waits for a transaction that failed just before. The library wants
# to linger for less than that; a flush sends at once.
_SOON_ABORTED: dict[str, Any] = {"transaction.timeout.ms": 10_000, "linger.ms": 5_000}


@dataclass
class Acknowledged:
    """What a broker said that it has, by offset.

    Attributes:
        committed, aborted: the offsets of transactions whose end was acknowledged. Of others only
            the log knows how they ended.
        undecided: the acknowledged offsets of those others.
        in_doubt: the keys of records that were sent and not acknowledged.
    """

    records: dict[int, Record] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    undecided: set[int] = field(default_factory=set)
    in_doubt: set[bytes] = field(default_factory=set)


Kind = tuple[str, bool]
"""Of a producer: its codec, and whether it is idempotent."""

ALL_KINDS = [(codec, is_idempotent) for is_idempotent in (False, True) for codec in CODECS]


class Traffic(Background):
    """Writes into a partition of a topic as long as it is entered: batches of each codec, of plain
    and of idempotent producers, and transactions that are committed and aborted in turn.

    What the broker did not acknowledge may be in the log all the same, once or twice; of idempotent
    producers once.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: Topic,
        seed: int,
        *,
        partition: int = 0,
        kinds: Sequence[Kind] = ALL_KINDS,
        pause_s: float = _PAUSE_S,
    ) -> None:
        super().__init__()
        self.topic = topic
        self._cluster = cluster
        self._partition = partition
        self._kinds = kinds
        self._pause_s = pause_s
        self._records = _records(random.Random(f"{topic.name} {partition} {seed}"))
        self._turn = Lock()
        self._lock = Lock()
        self._acknowledged = Acknowledged()
        self._transactional: Producer | None = None

    @property
    def acknowledged(self) -> Acknowledged:
        """All of it, once this was left."""
        assert self._running is not None
        assert self._running.done()
        return self._acknowledged

    def some(self, chance: random.Random) -> tuple[int, Record] | None:
        """One of the records that were acknowledged so far."""
        with self._lock:
            records = self._acknowledged.records
            if not records:
                return None
            offset = next(itertools.islice(records, chance.randrange(len(records)), None))
            return offset, records[offset]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is written within the block; what was begun has ended.

        A killed broker may leave a transaction open that its coordinator does not know, so that no
        timeout ends it: only the marker of the same producer's next transaction does. Until then
        nothing behind it is stable. That happens to a producer too that was told of the end of all
        its transactions, so that each pause begins with one more.
        """
        with self._turn:
            assert self._running is not None
            assert not self._running.done()
            self._transactional = eventually(lambda: self._transaction(None, is_commit=False))
            yield

    def run(self) -> None:
        producers = {kind: self._producer(*kind) for kind in self._kinds}
        turns = itertools.cycle(self._kinds)
        for number in itertools.count():
            if self.wait(self._pause_s):
                return
            with self._turn:
                if number % 5 < 3:
                    kind = next(turns)
                    if not self._plain(producers[kind]):
                        producers[kind] = self._producer(*kind)
                else:
                    self._transactional = self._transaction(
                        self._transactional, is_commit=number % 5 == 3
                    )

    def _producer(self, codec: str, is_idempotent: bool) -> Producer:
        settings = {"enable.idempotence": is_idempotent}
        return self._cluster.producer(codec, **_IMPATIENT, **settings)

    def _plain(self, producer: Producer) -> bool:
        """Whether the producer can go on: one that its broker left for too long does not."""
        try:
            self._note(*self._batch(producer))
        except (KafkaException, KafkaClientError):
            return False
        return True

    def _transaction(self, producer: Producer | None, *, is_commit: bool) -> Producer | None:
        """The producer to go on with; None: a new one, which first aborts what this one left."""
        sent: list[int] = []
        try:
            if producer is None:
                own = {"transactional.id": f"{self.topic.name}-{self._partition}"}
                producer = self._cluster.producer(**_IMPATIENT, **_SOON_ABORTED, **own)
                producer.init_transactions(CLIENT_TIMEOUT_S)
            producer.begin_transaction()
            for _ in range(_BATCHES_OF_A_TRANSACTION):
                offsets, records = self._batch(producer)
                self._note(offsets, records)
                sent += offsets
            end = producer.commit_transaction if is_commit else producer.abort_transaction
            end(CLIENT_TIMEOUT_S)
        except (KafkaException, KafkaClientError):
            self._acknowledged.undecided.update(sent)
            return None
        said = self._acknowledged
        (said.committed if is_commit else said.aborted).update(sent)
        return producer

    def _batch(self, producer: Producer) -> tuple[list[int], list[Record]]:
        records = [next(self._records) for _ in range(_RECORDS_PER_BATCH)]
        try:
            return send_batch(producer, self.topic, self._partition, records), records
        except (KafkaException, KafkaClientError):
            self._acknowledged.in_doubt.update(record.key for record in records if record.key)
            raise

    def _note(self, offsets: list[int], records: list[Record]) -> None:
        with self._lock:
            self._acknowledged.records.update(zip(offsets, records, strict=True))


def _records(chance: random.Random) -> Iterator[Record]:
    """Of now, half of whose bytes a compression takes away."""
    for number in itertools.count():
        value = chance.randbytes(_VALUE_BYTES // 2).hex().encode()
        headers = [("number", str(number).encode())]
        yield Record(str(number).encode(), value, time.time_ns() // 1_000_000, headers)
