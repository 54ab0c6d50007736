"""Connect a job to RLMM and RSM, from the driver and from every task, and retry calls to them."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar, cast

import grpc
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from services.api.errors import (
    InvalidRequestError,
    NotServedError,
    PermissionDeniedError,
    RetriableRemoteStorageError,
    ThrottledError,
)
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segment_objects import SegmentObjects
from services.common.addresses import each_address, split_address
from services.common.client_security import NOT_CHOSEN, SecurityOptions
from services.common.retry import wait_s
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient, SegmentObjectsClient

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_THROTTLED_FOR_S = 900.0
"""How long a task waits for a service that has too much to do."""

ServiceT = TypeVar("ServiceT")


@dataclass(frozen=True, slots=True)
class Services:
    """Addresses of the services (HOST:PORT), and how to connect to them.

    Attributes:
        retry_for_s: how long to retry while a service is down.
        security: names files that every executor must have at the same paths.
    """

    rlmm: str
    rsm: str
    retry_for_s: float
    security: SecurityOptions = NOT_CHOSEN

    @contextmanager
    def connected_rlmm(self, *, retries: bool = True) -> Iterator[RemoteLogMetadataManager]:
        with self.open_channel(self.rlmm) as channel:
            rlmm = RemoteLogMetadataManagerClient(channel, self.rlmm)
            yield self.retried(rlmm) if retries else rlmm

    @contextmanager
    def connected_rsm(self) -> Iterator[RemoteStorageManager]:
        with self.open_channel(self.rsm) as channel:
            yield self.retried(RemoteStorageManagerClient(channel, self.rsm))

    @contextmanager
    def connected_objects(self) -> Iterator[SegmentObjects]:
        with self.open_channel(self.rsm) as channel:
            yield self.retried(SegmentObjectsClient(channel, self.rsm))

    def open_channel(self, address: str) -> grpc.Channel:
        return open_channel(address, self.security.security_for(address))

    def retried(self, service: ServiceT) -> ServiceT:
        """Return a service whose calls are repeated while it is down or has too much to do.

        This is the only retry loop between a task and a service. Calls must be idempotent. Of a
        stream only the beginning is repeated: what was yielded cannot be taken back.
        """
        return cast(ServiceT, _Retried(service, self._retrying()))

    def _retrying(self) -> Retrying:
        return Retrying(
            retry=retry_if_exception_type((RetriableRemoteStorageError, ThrottledError)),
            wait=wait_random_exponential(_FIRST_WAIT_S, _LONGEST_WAIT_S),
            stop=self._is_over,
            sleep=wait_s,
            reraise=True,
        )

    def _is_over(self, call: RetryCallState) -> bool:
        error = None if call.outcome is None else call.outcome.exception()
        is_throttled = isinstance(error, ThrottledError)
        limit_s = max(self.retry_for_s, _THROTTLED_FOR_S) if is_throttled else self.retry_for_s
        return (call.seconds_since_start or 0.0) >= limit_s

    def require_reachable(self, *, may_only_read: bool = False) -> None:
        """Wait until both services accept connections, and check that each is the right one.

        Args:
            may_only_read: the job needs no role that deletes.

        Raises:
            PermissionDeniedError: the caller has no role that deletes, and the job needs one.
            RetriableRemoteStorageError: one is unreachable; names it and its address.
            InvalidRequestError: another service listens at an address, or there is no such host.
        """
        for name, address in (("rlmm", self.rlmm), ("rsm", self.rsm)):
            _require_known_host(name, address)
        with self.connected_rlmm() as rlmm, self._answering("rlmm", self.rlmm):
            rlmm.list_partitions(page_size=1)
        # The cheapest call of RSM: it refuses an empty batch, and first who may not delete.
        refusals = (InvalidRequestError, PermissionDeniedError)
        refused = suppress(*refusals) if may_only_read else suppress(InvalidRequestError)
        with self.connected_rsm() as rsm, self._answering("rsm", self.rsm), refused:
            rsm.delete_log_segment_data_batch([])

    @contextmanager
    def _answering(self, name: str, address: str) -> Iterator[None]:
        try:
            yield
        except NotServedError as e:
            raise InvalidRequestError(
                f"--{name}: {address} is the address of another service"
            ) from e
        except RetriableRemoteStorageError as e:
            raise RetriableRemoteStorageError(
                f"{name} at {address} has served no call within {self.retry_for_s:g} s; check that "
                f"it runs and that --{name} is its address ({e})"
            ) from e


def _require_known_host(name: str, address: str) -> None:
    """Raise InvalidRequestError if no host of an address exists, as its name servers say."""
    hosts = {split_address(each)[0] for each in each_address(address)}
    for host in hosts:
        try:
            socket.getaddrinfo(host, None)
        except socket.gaierror as e:
            if e.errno not in (socket.EAI_NONAME, socket.EAI_NODATA):
                return  # it may be resolved later
        else:
            return
    raise InvalidRequestError(f"--{name}: there is no host {', '.join(sorted(hosts))}")


class _Retried:
    """The proxy of a service that `Services.retried` returns."""

    def __init__(self, service: object, retrying: Retrying) -> None:
        self._service = service
        self._retrying = retrying

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._service, name)

        def call(*arguments: Any, **named: Any) -> Any:
            result = self._retrying(method, *arguments, **named)
            if not isinstance(result, Iterator):
                return result
            return self._streamed(
                result, lambda: method(*arguments, **named), name == "fetch_index"
            )

        return call

    def _streamed(
        self, begun: Iterator[Any], again: Callable[[], Iterator[Any]], is_whole: bool
    ) -> Iterator[Any]:
        """Yield a stream that is begun again until its first item comes, or all, if it is small."""
        streams = [begun]

        def read_first() -> tuple[list[Any], Iterator[Any]]:
            stream = streams.pop() if streams else again()
            return list(stream if is_whole else islice(stream, 1)), stream

        first, rest = self._retrying(read_first)
        yield from first
        yield from rest
