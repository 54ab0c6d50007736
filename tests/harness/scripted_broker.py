"""Run a broker that answers each request as a test wants, also not at all: no real one does."""

import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock, Thread
from typing import Any, Self

from kafka.protocol.metadata import ApiVersionsResponse, MetadataResponse

from services.local.process import LOOPBACK

METADATA, API_VERSIONS = 3, 18
READ = 3
_SIZE = struct.Struct(">i")

CLOSE = b""
Answer = Any
"""A response of kafka-python, the bytes of one with its header, CLOSE, or None: none comes."""


class ScriptedBroker:
    """Listens while it is entered; it is a way to itself, as BrokerBeside is to a real broker.

    Args:
        answers: by API key, each of a request's version and bytes.
        readable: the topics that Metadata lets the user read.

    Attributes:
        requests: API key and bytes of each request that came.
        refuses_metadata: it closes the connection at such a request, as before a login.
        open_connections: how many there are.
    """

    def __init__(
        self,
        answers: Mapping[int, Callable[[int, bytes], Answer]],
        *,
        needs_login: bool = False,
        readable: tuple[str, ...] = (),
    ) -> None:
        self.needs_login = needs_login
        self.readable = readable
        self.refuses_metadata = False
        self.requests: list[tuple[int, bytes]] = []
        self.open_connections = 0
        self._answers = dict(answers)
        self._listener = socket.create_server((LOOPBACK, 0))
        self._accepted: list[socket.socket] = []
        self._lock = Lock()

    def open(self) -> socket.socket:
        opened = socket.create_connection(self._listener.getsockname(), 10)
        opened.setblocking(False)
        return opened

    def asked(self, api_key: int) -> list[bytes]:
        return [data for key, data in self.requests if key == api_key]

    def __enter__(self) -> Self:
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all connections, and refuse others."""
        for each in (self._listener, *self._accepted):
            with suppress(OSError):  # it is closed already
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                accepted, _ = self._listener.accept()
                self._accepted.append(accepted)
                Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        with self._lock:
            self.open_connections += 1
        with accepted, suppress(OSError), accepted.makefile("rb") as stream:
            while size := stream.read(_SIZE.size):
                answer = self._answer(stream.read(*_SIZE.unpack(size)))
                if answer == CLOSE:
                    break
                if answer is not None:
                    accepted.sendall(_SIZE.pack(len(answer)) + answer)
        with self._lock:
            self.open_connections -= 1

    def _answer(self, request: bytes) -> bytes | None:
        api_key, version, correlation_id = struct.unpack_from(">hhi", request)
        self.requests.append((api_key, request))
        if api_key == API_VERSIONS:
            answer = self._api_versions()
        elif api_key == METADATA:
            answer = CLOSE if self.refuses_metadata else self._metadata()
        else:
            answer = self._answers[api_key](version, request)
        if answer is None or isinstance(answer, bytes):
            return answer
        answer.API_VERSION = version
        answer.with_header(correlation_id)
        return bytes(answer.encode(header=True))

    def _api_versions(self) -> Any:
        # Version 8 of Metadata is not flexible, and has what a user may do.
        known = {API_VERSIONS: 0, METADATA: 8} | dict.fromkeys(self._answers, 9)
        return ApiVersionsResponse(
            error_code=0,
            api_keys=[
                ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=last)
                for key, last in known.items()
            ],
        )

    def _metadata(self) -> Any:
        topic = MetadataResponse.MetadataResponseTopic
        return MetadataResponse(
            brokers=[],
            topics=[
                topic(
                    error_code=0,
                    name=name,
                    is_internal=False,
                    partitions=[],
                    authorized_operations={READ},
                )
                for name in self.readable
            ],
        )
