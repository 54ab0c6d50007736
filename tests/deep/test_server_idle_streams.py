"""Peers that open calls and then do nothing: what they hold comes back, and others are served."""

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from threading import Event, Semaphore
from typing import Any

import grpc
import pytest
from prometheus_client import REGISTRY

from services.api.calls import current_call
from services.api.errors import InvalidRequestError, RetriableRemoteStorageError, ThrottledError
from services.common.client_security import PLAINTEXT
from services.common.log import LINES_PER_WINDOW
from services.common.settings import ServiceSettings
from services.rpc.client.channel import open_channel
from services.rpc.server.server import (
    WAITING_PER_STREAM_THREAD,
    WAITING_PER_UNARY_THREAD,
    Service,
    start_grpc,
)
from services.rpc.statuses import map_rpc_errors
from tests.harness.eventually import eventually
from tests.harness.idle_streams import GOAWAY, PING, Connection, idle_peer

SERVICE = "test.Streams"
IDLE_MS = 1_000
MIB = 1024 * 1024


class Streams:
    """A service of raw bytes with a method of each kind."""

    def __init__(self) -> None:
        self.release = Event()
        self.held = Semaphore(0)
        self.given_up = Semaphore(0)
        self.fetched = 0

    def copy(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        return b"%d" % sum(len(data) for data in requests)

    def fetch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            for _ in range(int(request)):
                self.fetched += 1
                yield bytes(MIB)
        except GeneratorExit:
            self.given_up.release()
            raise

    def slow(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self.held.release()
        self.release.wait(timeout=30)
        yield b"done"

    def look_up(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return b"found"

    def hold(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.held.release()
        eventually(lambda: not current_call().is_active() or self.release.is_set(), 30_000)
        self.given_up.release()
        # Our clock may be a moment ahead of the client's: no answer passes for one in time.
        eventually(lambda: not context.is_active() or self.release.is_set(), 30_000)
        return b"too late"

    def add_to(self, server: grpc.Server) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Copy": grpc.stream_unary_rpc_method_handler(self.copy),
            "Fetch": grpc.unary_stream_rpc_method_handler(self.fetch),
            "Slow": grpc.unary_stream_rpc_method_handler(self.slow),
            "LookUp": grpc.unary_unary_rpc_method_handler(self.look_up),
            "Hold": grpc.unary_unary_rpc_method_handler(self.hold),
            "Parsed": grpc.unary_unary_rpc_method_handler(
                lambda request, context: b"", request_deserializer=_refuse
            ),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])


def _refuse(message: bytes) -> bytes:
    raise ValueError(message)


class Client:
    """Calls the service's methods; failures as services' clients see them."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel

    def copy(self, *chunks: bytes) -> bytes:
        with map_rpc_errors("server"):
            reply: bytes = self.channel.stream_unary(path("Copy"), None, None)(
                iter(chunks), timeout=60
            )
            return reply

    def stream_of_a_mebibyte(self, method: str) -> None:
        if method == "Copy":
            assert self.copy(bytes(MIB)) == b"%d" % MIB
        else:
            with map_rpc_errors("server"):
                assert [len(data) for data in self.stream(method, b"1")] == [MIB]

    def open_copy(self, done: Event) -> Any:
        """A copy that sends one message, and no other until `done`."""

        def requests() -> Iterator[bytes]:
            yield b"first"
            done.wait(timeout=60)

        return self.channel.stream_unary(path("Copy"), None, None).future(requests())

    def stream(self, method: str, request: bytes) -> Any:
        return self.channel.unary_stream(path(method), None, None)(request)

    def unary(self, method: str, timeout_s: float | None = 60) -> bytes:
        with map_rpc_errors("server"):
            call = self.channel.unary_unary(path(method), None, None)
            reply: bytes = call(b"request", timeout=timeout_s)
            return reply


def path(method: str) -> str:
    return f"/{SERVICE}/{method}"


@pytest.fixture
def service() -> Iterator[Streams]:
    service = Streams()
    yield service
    service.release.set()


@pytest.fixture
def address(
    service: Streams, settings: ServiceSettings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Serve; a unary call may take as long as a stream may be idle."""
    deadline_s = settings.stream_idle_timeout_ms / 1000
    monkeypatch.setattr("services.rpc.server.server.DEFAULT_DEADLINE_S", deadline_s)
    process = Service("test", SERVICE, service.add_to, lambda: None, lambda: None, 4)
    with ExitStack() as cleanup:
        address = start_grpc(process, settings, cleanup).address
        cleanup.callback(service.release.set)
        yield address


@pytest.fixture
def settings() -> ServiceSettings:
    return ServiceSettings(
        plaintext=True,
        unary_threads=4,
        stream_threads=4,
        stream_idle_timeout_ms=IDLE_MS,
        drain_timeout_ms=2_000,
    )


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with open_channel(address, PLAINTEXT) as channel:
        yield Client(channel)


# One peer at a time


def test_a_copy_that_sends_nothing_more_is_ended_and_may_be_repeated(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    done = Event()
    began_s = time.monotonic()
    with caplog.at_level(logging.INFO, logger="sediment.rpc"):
        copy = client.open_copy(done)
        with pytest.raises(RetriableRemoteStorageError), map_rpc_errors("server"):
            copy.result(timeout=30)
        done.set()
        (line,) = eventually(lambda: caplog.records)
    assert line.__dict__["code"] == "DEADLINE_EXCEEDED"
    reported = re.search(r"the peer was idle for (\d+\.\d) s", line.__dict__["why"])
    assert reported is not None
    # The watchdog looks now and then, on a busy machine late.
    assert IDLE_MS / 1000 <= float(reported[1]) <= round(time.monotonic() - began_s, 1)
    assert "127.0.0.1" in line.__dict__["peer"]
    assert client.copy(b"first", b"second") == b"11"


def test_a_reader_that_takes_nothing_more_is_ended(client: Client, service: Streams) -> None:
    stream = client.stream("Fetch", b"1000")
    next(stream)
    assert service.given_up.acquire(timeout=30)
    assert service.fetched < 100
    with pytest.raises(RetriableRemoteStorageError), map_rpc_errors("server"):
        list(stream)


UNHURRIED_MS = 4_000
UNHURRIED = ServiceSettings(
    plaintext=True,
    stream_idle_timeout_ms=UNHURRIED_MS,
    drain_timeout_ms=2_000,
)


@pytest.mark.parametrize("settings", [UNHURRIED])
def test_slow_reader_that_continues_is_served(client: Client) -> None:
    stream = client.stream("Fetch", b"24")
    pause = Event()
    for _ in range(24):
        assert len(next(stream)) == MIB
        # Together twice as long as one may be.
        pause.wait(UNHURRIED_MS / 1000 / 12)
    assert list(stream) == []


def test_stream_of_a_slow_server_is_not_cancelled(client: Client, service: Streams) -> None:
    stream = client.stream("Slow", b"")
    assert service.held.acquire(timeout=30)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(next, stream)
        with pytest.raises(TimeoutError):
            answer.result(timeout=2.5 * IDLE_MS / 1000)
        service.release.set()
        assert answer.result(timeout=30) == b"done"


def test_a_call_without_a_deadline_gets_one(client: Client, service: Streams) -> None:
    with pytest.raises(RetriableRemoteStorageError):
        client.unary("Hold", timeout_s=None)
    assert service.given_up.acquire(timeout=30)
    assert not service.release.is_set()


def test_call_with_its_own_deadline_keeps_it(client: Client, service: Streams) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.unary, "Hold", 60)
        assert service.held.acquire(timeout=30)
        with pytest.raises(TimeoutError):
            answer.result(timeout=2.5 * IDLE_MS / 1000)
        service.release.set()
        assert answer.result(timeout=30) == b"too late"


def test_pings_are_answered_and_close_no_connection(address: str) -> None:
    connection = Connection(address)
    seen: Counter[int] = Counter()

    def answered(count: int) -> bool:
        seen.update(kind for kind, _, _ in connection.read_frames())
        return seen[PING] == count

    with closing(connection.socket):
        for sent in (1_000, 2_000):
            connection.send_pings(1_000)
            eventually(partial(answered, sent), 30_000)
    assert GOAWAY not in seen


@pytest.mark.parametrize("method", ["Copy", "Fetch", "LookUp"])
def test_a_call_that_ends_without_its_request_is_named(client: Client, method: str) -> None:
    if method == "Copy":
        assert client.copy() == b"0"
        return
    call = client.channel.stream_unary(path(method), None, None)
    with pytest.raises(InvalidRequestError, match="ended without one"), map_rpc_errors("s"):
        call(iter(()), timeout=60)


def test_malformed_message_is_refused_and_not_logged(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidRequestError, match="not a message of this call"):
        client.unary("Parsed")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# Many of them

PATIENT = ServiceSettings(
    plaintext=True,
    unary_threads=4,
    stream_threads=4,
    stream_idle_timeout_ms=600_000,
    drain_timeout_ms=1_000,
)
# Four are served and the others wait for a thread: there is no TLS, so there are no identities.
STREAMS = 4 + 4 * WAITING_PER_STREAM_THREAD
UNARY_CALLS = 4 + 4 * WAITING_PER_UNARY_THREAD
KIND = {"Copy": "stream-in", "Fetch": "stream-out"}


@pytest.mark.parametrize("settings", [PATIENT])
@pytest.mark.parametrize(("method", "other"), [("Copy", "Fetch"), ("Fetch", "Copy")])
def test_a_thousand_idle_streams_take_the_room_of_their_kind_and_no_more(
    address: str, client: Client, method: str, other: str
) -> None:
    with idle_peer(address, 20) as peer:
        peer.open_calls(path(method), 1000)
        eventually(lambda: peer.ended == 1000 - STREAMS, 30_000)
        for _ in range(100):
            assert client.unary("LookUp") == b"found"
            client.stream_of_a_mebibyte(other)
        text = rf"too many concurrent {KIND[method]} calls \(limit 4\) and the queue is full; retry"
        with pytest.raises(ThrottledError, match=text):
            client.stream_of_a_mebibyte(method)
        assert _threads_named(KIND[method]) == 4
        assert peer.ended == 1000 - STREAMS


@pytest.mark.parametrize("settings", [PATIENT])
def test_streams_that_wait_are_let_in_when_idle_ones_leave(address: str, client: Client) -> None:
    with idle_peer(address, 1) as peer, ThreadPoolExecutor(1) as pool:
        peer.open_calls(path("Copy"), STREAMS - 1)
        eventually(lambda: _copies() == STREAMS - 1)
        copy = pool.submit(client.copy, b"waits")
        with pytest.raises(TimeoutError):
            copy.result(timeout=1)
        peer.close()
        assert copy.result(timeout=30) == b"5"


def test_calls_without_their_requests_are_cancelled_and_others_served(
    address: str, client: Client
) -> None:
    with idle_peer(address, 20) as peer:
        peer.open_calls(path("LookUp"), 1000)
        eventually(lambda: peer.ended >= 1000 - UNARY_CALLS, 30_000)
        assert client.copy(b"copied") == b"6"
        eventually(lambda: peer.ended == 1000, 60_000)
        assert client.unary("LookUp") == b"found"


@pytest.mark.parametrize("settings", [PATIENT])
def test_refused_calls_fill_no_log(address: str, limited_log: pytest.LogCaptureFixture) -> None:
    limited_log.set_level(logging.INFO, logger="sediment.rpc")
    with idle_peer(address, 20) as peer:
        peer.open_calls(path("Copy"), 1000)
        eventually(lambda: peer.ended == 1000 - STREAMS, 30_000)
        refused = [r for r in limited_log.records if "RESOURCE_EXHAUSTED" in r.getMessage()]
    assert len(refused) == LINES_PER_WINDOW


# The end


def test_streams_in_progress_may_end_within_the_drain(service: Streams) -> None:
    done = Event()
    with ExitStack() as outside, ExitStack() as cleanup:
        client = _draining_client(service, 60_000, outside, cleanup)
        under_way = client.stream("Slow", b"")
        assert service.held.acquire(timeout=30)
        idle = [client.open_copy(done) for _ in range(STREAMS)]
        eventually(lambda: _copies() == STREAMS)
        with ThreadPoolExecutor(1) as pool:
            draining = pool.submit(cleanup.close)
            # A server that drains refuses; how, is gRPC's to say.
            eventually(lambda: _is_refused(client))
            service.release.set()
            assert list(under_way) == [b"done"]
            assert not draining.done()
            done.set()
            draining.result(timeout=60)
        eventually(lambda: all(copy.done() for copy in idle))
    assert _threads_named("stream-in") == _threads_named("watchdog") == 0


def test_idle_streams_end_with_the_drain(service: Streams) -> None:
    done = Event()
    with ExitStack() as outside, ExitStack() as cleanup:
        client = _draining_client(service, 3_000, outside, cleanup)
        assert client.unary("LookUp") == b"found"
        idle = [client.open_copy(done) for _ in range(STREAMS)]
        eventually(lambda: _copies() == STREAMS)
        started = time.monotonic()
        cleanup.close()
        assert time.monotonic() - started > 2.5
        for copy in idle:
            with pytest.raises(RetriableRemoteStorageError), map_rpc_errors("server"):
                copy.result(timeout=30)
        done.set()
    assert _threads_named("stream-in") == _threads_named("watchdog") == 0


def _draining_client(
    service: Streams, drain_timeout_ms: int, outside: ExitStack, cleanup: ExitStack
) -> Client:
    """Of a server that drains when `cleanup` unwinds."""
    settings = PATIENT.model_copy(update={"drain_timeout_ms": drain_timeout_ms})
    process = Service("test", SERVICE, service.add_to, lambda: None, lambda: None, 4)
    address = start_grpc(process, settings, cleanup).address
    return Client(outside.enter_context(open_channel(address, PLAINTEXT)))


def _is_refused(client: Client) -> bool:
    try:
        client.unary("LookUp", timeout_s=1)
    except RetriableRemoteStorageError:
        return True
    return False


def _threads_named(name: str) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


def _copies() -> float:
    """Return how many copies have a thread or wait for one."""
    names = ("sediment_rpc_calls_in_progress", "sediment_rpc_calls_waiting")
    return sum(REGISTRY.get_sample_value(name, {"kind": "stream-in"}) or 0 for name in names)
