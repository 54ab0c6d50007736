"""Send the reads of partitions to the RLMs beside their leaders, found through any RLM."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from services.api.errors import InvalidRequestError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.offset_queries import OffsetAnswer, OffsetQueries, OffsetService
from services.api.pages import every_page
from services.api.remote_log_manager import FetchError, FetchPart, FetchRequest

FOUND_FOR_S = 10.0
"""How long a reader stays at an RLM before it looks where the leader is."""

AVOIDED_FOR_S = 60.0
"""How long an announced address that cannot be reached from here is not tried again."""

T = TypeVar("T")


class _Found(NamedTuple):
    """The RLM that serves a partition; its address, None of the given one; on the clock."""

    rlm: OffsetService
    address: str | None
    until_s: float


class LeaderReads:
    """Read each partition at the RLM that its cluster names, else at the given one.

    The given one serves everything, too, but what it has of a partition that another broker leads
    is some seconds old. Not thread-safe.

    Args:
        given: any RLM of the cluster.
        connect: returns a client of the RLM at HOST:PORT; raises InvalidRequestError if it may not
            be called from here.
    """

    def __init__(
        self,
        given: OffsetService,
        connect: Callable[[str], OffsetService],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given = given
        self._connect = connect
        self._clock = clock
        self._clients: dict[str, OffsetService] = {}
        self._found: dict[TopicIdPartition, _Found] = {}
        self._avoided_until_s: dict[str, float] = {}

    def fetch(self, request: FetchRequest) -> Iterator[FetchPart]:
        """Fetch from one partition, as RemoteLogManager.fetch."""
        tp = request.partitions[0].topic_id_partition
        parts = self._read(tp, lambda rlm: list(rlm.fetch(request)))
        if any(part.error is FetchError.NOT_LEADER_OR_FOLLOWER for part in parts):
            self._found.pop(tp, None)
        return iter(parts)

    def list_offsets(self, queries: OffsetQueries) -> list[OffsetAnswer]:
        """Find offsets of one partition, as OffsetService.list_offsets."""
        tp = queries.queries[0].topic_id_partition
        return self._read(tp, lambda rlm: rlm.list_offsets(queries))

    def _read(self, tp: TopicIdPartition, read: Callable[[OffsetService], T]) -> T:
        found = self._find(tp)
        try:
            return read(found.rlm)
        except RetriableRemoteStorageError:
            self._found.pop(tp, None)
            if found.address is None and not self._clients:
                raise
            self._avoid(found.address)
        return read(self._find(tp).rlm)

    def _find(self, tp: TopicIdPartition) -> _Found:
        found = self._found.get(tp)
        if found is None or self._clock() >= found.until_s:
            found = self._found[tp] = self._ask(tp)
        return found

    def _ask(self, tp: TopicIdPartition) -> _Found:
        """Ask the given RLM, or another known one while that is away."""
        failure: RetriableRemoteStorageError | None = None
        for address, rlm in [(None, self._given), *self._clients.items()]:
            try:
                named = _reader_of(rlm, tp)
            except RetriableRemoteStorageError as e:
                failure = failure or e
                continue
            client = None if named is None else self._client_of(named)
            until_s = self._clock() + FOUND_FOR_S
            if client is not None:
                return _Found(client, named, until_s)
            return _Found(rlm, address, until_s)
        assert failure is not None
        raise failure

    def _client_of(self, address: str) -> OffsetService | None:
        if self._clock() < self._avoided_until_s.get(address, 0.0):
            return None
        if address not in self._clients:
            try:
                self._clients[address] = self._connect(address)
            except InvalidRequestError:  # Another machine, and no certificates.
                self._avoid(address)
                return None
        return self._clients[address]

    def _avoid(self, address: str | None) -> None:
        if address is not None:
            self._avoided_until_s[address] = self._clock() + AVOIDED_FOR_S


def _reader_of(rlm: OffsetService, tp: TopicIdPartition) -> str | None:
    """Return the address of the RLM that serves a partition; None if any may."""
    for page in every_page(partial(rlm.describe_partitions, [tp.topic])):
        addresses = {each.broker_id: each.address for each in page.rlms}
        for each in page.partitions:
            if each.topic_id_partition == tp and each.reader_id is not None:
                return addresses.get(each.reader_id)
    return None
