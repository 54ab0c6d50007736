"""Read a partition's records from the broker's disk and the tier, through RLM."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from services.api.errors import InvalidRequestError, RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.offset_queries import OffsetQueries, OffsetQuery, SpecialTime
from services.api.remote_log_manager import FetchError, IsolationLevel, all_descriptions
from services.client.leader import LeaderReads
from services.client.records import ReadFailedError, ReadOptions, Record, decoded
from services.common.addresses import other_machine
from services.common.client_security import PLAINTEXT, ClientSecurity
from services.common.inflate import DEFAULT_LIMIT_BYTES
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient

EARLIEST = SpecialTime.EARLIEST


@dataclass(frozen=True, slots=True)
class AtTime:
    """The offset of the first record of this time or later, or the end."""

    timestamp_ms: int


class TierConsumer:
    """A connection to the RLMs of a cluster, found through any of them. Not thread-safe.

        with TierConsumer("rlm.example:9093", ClientSecurity(ca, certificate, key)) as consumer:
            for record in consumer.records("payments", 0):
                print(record.offset, record.key, record.value)

    Args:
        rlm: HOST:PORT, dns:///HOST:PORT or ipv4:IP:PORT,IP:PORT.
        security: certificates, or PLAINTEXT to send everything in the clear; by default plaintext
            to this machine only.

    Raises:
        InvalidRequestError: `rlm` is another machine, and no security was chosen; or it is no
            address.
    """

    def __init__(self, rlm: str, security: ClientSecurity | None = None) -> None:
        self._opened = ExitStack()
        self._security = security
        self._rlm = self._connect(rlm)
        self._reads = LeaderReads(self._rlm, self._connect)

    def _connect(self, rlm: str) -> RemoteLogManagerClient:
        other = other_machine(rlm)
        if self._security is None and other is not None:
            raise InvalidRequestError(
                f"{other} is another machine, and no security was chosen; pass "
                "ClientSecurity(ca=..., certificate=..., key=...), or PLAINTEXT if it serves that"
            )
        channel = open_channel(rlm, self._security or PLAINTEXT)
        return RemoteLogManagerClient(self._opened.enter_context(channel), rlm)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; an unfinished read fails."""
        self._opened.close()

    def partitions(self, topic: str) -> list[TopicIdPartition]:
        """Return the partitions of a topic that RLM or the tier has.

        Raises:
            RemoteStorageError: RLM could not be called.
        """
        return [each.topic_id_partition for each in all_descriptions(self._rlm, [topic])]

    def records(
        self,
        topic: str,
        partition: int,
        start: int | SpecialTime | AtTime = EARLIEST,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        follow: bool = False,
        with_transactions: bool = False,
        batch_limit_bytes: int = DEFAULT_LIMIT_BYTES,
    ) -> Iterator[Record]:
        """Read records in the order of their offsets, to the end of the log.

        Args:
            start: an offset, EARLIEST, LATEST, another SpecialTime, or AtTime.
            isolation: READ_COMMITTED leaves records of aborted transactions out.
            follow: wait for further records at the end, and retry while RLM or the tier is away.
            with_transactions: also yield records of aborted transactions and control records, with
                their kind, up to the last stable offset.
            batch_limit_bytes: most bytes that the records of one batch may have, decompressed.

        Raises:
            RemoteResourceNotFoundError: the partition is unknown, or several topics have the name.
            ReadFailedError: a fetch failed.
            UnreadableBatchError: a batch cannot be decoded.
            RemoteStorageError: RLM could not be called.
        """
        tp = self._find(topic, partition)
        options = ReadOptions(batch_limit_bytes, isolation, with_transactions, follow)
        return decoded(self._reads, tp, self._offset(tp, start, isolation), options)

    def _find(self, topic: str, partition: int) -> TopicIdPartition:
        named = [tp for tp in self.partitions(topic) if tp.partition == partition]
        if len(named) != 1:
            what = "is unknown to RLM" if not named else f"is of {len(named)} topics of that name"
            raise RemoteResourceNotFoundError(f"partition {topic}-{partition} {what}")
        return named[0]

    def _offset(
        self, tp: TopicIdPartition, start: int | SpecialTime | AtTime, isolation: IsolationLevel
    ) -> int:
        if isinstance(start, int) and not isinstance(start, SpecialTime):
            return start
        at = start.timestamp_ms if isinstance(start, AtTime) else start
        queries = OffsetQuery(tp, at), OffsetQuery(tp, SpecialTime.LATEST)
        first, end = self._reads.list_offsets(OffsetQueries(queries, isolation))
        for answer in (first, end):
            if answer.error is not FetchError.NONE:
                reason = f"{tp.topic}-{tp.partition}: {answer.error.value}: {answer.error_message}"
                raise ReadFailedError(f"no offset of {reason}", answer.error)
        return end.offset if first.offset < 0 else first.offset
