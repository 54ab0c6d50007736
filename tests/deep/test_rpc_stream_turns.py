"""A stream that waits in the server's queue is not one without progress."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Event, Semaphore
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from services.api.errors import RetriableRemoteStorageError
from services.common.client_security import PLAINTEXT
from services.common.settings import ServiceSettings
from services.rpc.client.calls import call_stream, call_with_stream
from services.rpc.client.channel import CHUNK_BYTES, open_channel
from services.rpc.server.server import Service, start_grpc

SERVICE = "test.Turns"
NEVER_S = 300.0
SHORT_S = 3.0
LONG_S = 60.0
CHUNK = BytesValue(value=bytes(CHUNK_BYTES))


class Turns:
    """Streams of one message type both ways; each is held before it ends.

    Attributes:
        held: released by each that is.
    """

    def __init__(self) -> None:
        self.release = Event()
        self.held = Semaphore(0)

    def copy(self, requests: Iterator[BytesValue], context: grpc.ServicerContext) -> BytesValue:
        count = sum(1 for _ in requests)
        self._hold()
        return BytesValue(value=b"%d" % count)

    def fetch(self, request: BytesValue, context: grpc.ServicerContext) -> Iterator[BytesValue]:
        self._hold()
        yield request

    def add_to(self, server: grpc.Server) -> None:
        parse, write = BytesValue.FromString, BytesValue.SerializeToString
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Copy": grpc.stream_unary_rpc_method_handler(self.copy, parse, write),
            "Fetch": grpc.unary_stream_rpc_method_handler(self.fetch, parse, write),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])

    def _hold(self) -> None:
        self.held.release()
        self.release.wait(NEVER_S)


class Client:
    """Calls `kind`, "copy" or "fetch", and answers what it answers."""

    def __init__(self, channel: grpc.Channel) -> None:
        parse, write = BytesValue.FromString, BytesValue.SerializeToString
        self._copy = channel.stream_unary(f"/{SERVICE}/Copy", write, parse)
        self._fetch = channel.unary_stream(f"/{SERVICE}/Fetch", write, parse)

    def call(self, kind: str, timeout_s: float, queue_timeout_s: float, chunks: int = 4) -> bytes:
        if kind == "copy":
            messages = [CHUNK] * chunks
            reply = call_with_stream(self._copy, messages, "server", timeout_s, queue_timeout_s)
            value: bytes = reply.value
            return value
        messages = list(call_stream(self._fetch, CHUNK, "server", timeout_s, queue_timeout_s))
        return b"%d" % len(messages)


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def client(turns: Turns) -> Iterator[Client]:
    """Of a server that has one thread for streams of each kind."""
    service = Service("test", SERVICE, turns.add_to, lambda: None, lambda: None, 1)
    settings = ServiceSettings(plaintext=True, stream_threads=1, drain_timeout_ms=1_000)
    with ExitStack() as cleanup:
        address = start_grpc(service, settings, cleanup).address
        channel = cleanup.enter_context(open_channel(address, PLAINTEXT))
        cleanup.callback(turns.release.set)
        yield Client(channel)


@contextmanager
def one_that_has_the_thread(kind: str, client: Client, turns: Turns) -> Iterator[None]:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.call, kind, NEVER_S, NEVER_S)
        assert turns.held.acquire(timeout=60)
        try:
            yield
        finally:
            turns.release.set()
        first.result(timeout=60)


def assert_waits(answer: "Future[bytes]", for_s: float) -> None:
    with pytest.raises(TimeoutError):
        answer.result(timeout=for_s)


@pytest.mark.parametrize(("kind", "answer"), [("copy", b"4"), ("fetch", b"1")])
def test_waiting_in_the_queue_is_not_a_lack_of_progress(
    client: Client, turns: Turns, kind: str, answer: bytes
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with one_that_has_the_thread(kind, client, turns):
            waiting = pool.submit(client.call, kind, SHORT_S, NEVER_S)
            assert_waits(waiting, 2 * SHORT_S)
        assert waiting.result(timeout=60) == answer


@pytest.mark.parametrize("kind", ["copy", "fetch"])
def test_the_wait_in_the_queue_has_a_limit(client: Client, turns: Turns, kind: str) -> None:
    with (
        one_that_has_the_thread(kind, client, turns),
        pytest.raises(
            RetriableRemoteStorageError,
            match=r"^server: has not begun to serve the call within 1\.0 s;",
        ),
    ):
        client.call(kind, NEVER_S, 1.0)
