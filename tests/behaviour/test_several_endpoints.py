"""Test clients of several endpoints, and the repeat of calls that a connection or a stop lost."""

import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.api.errors import InvalidRequestError, RetriableRemoteStorageError
from services.common.client_security import PLAINTEXT, ClientSecurity
from services.rpc.client.calls import call_once, call_stream
from services.rpc.client.channel import open_channel
from tests.harness.eventually import eventually
from tests.harness.served import RestartedServer

NAME = "test.Several"


class Answers:
    """A service that ends its first `lost` calls as a server that stops does."""

    def __init__(self, lost: int = 0) -> None:
        self.lost = lost
        self.calls = 0

    def add_to(self, server: grpc.Server) -> None:
        handlers = {
            "Unary": grpc.unary_unary_rpc_method_handler(self._unary),
            "Stream": grpc.unary_stream_rpc_method_handler(self._stream),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(NAME, handlers)])

    def _unary(self, request: bytes, context: Any) -> bytes:
        self._begin(context)
        return b"answer"

    def _stream(self, request: bytes, context: Any) -> Iterator[bytes]:
        if request == b"lost later":
            yield b"first"
        self._begin(context)
        yield b"answer"

    def _begin(self, context: Any) -> None:
        self.calls += 1
        if self.calls <= self.lost:
            context.cancel()


@pytest.fixture
def started() -> Iterator[Callable[[Answers], str]]:
    with ExitStack() as cleanup:

        def start(answers: Answers) -> str:
            server = RestartedServer(answers.add_to, NAME)
            cleanup.callback(server.stop)
            return server.address

        yield start


@pytest.fixture
def refusing() -> Iterator[str]:
    """Provide an address at which nothing listens, and nothing else will."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def unary(address: str, calls: int = 1, *, is_idempotent: bool = True) -> list[bytes]:
    with open_channel(address, PLAINTEXT) as channel:
        method: Any = channel.unary_unary(f"/{NAME}/Unary", None, None)
        return [call_once(method, b"", "test", is_idempotent=is_idempotent) for _ in range(calls)]


def stream(address: str, request: bytes = b"") -> list[bytes]:
    with open_channel(address, PLAINTEXT) as channel:
        method = channel.unary_stream(f"/{NAME}/Stream", None, None)
        return list(call_stream(method, request, "test", 30))


def test_a_wrong_endpoint_among_three_fails_no_call(
    started: Callable[[Answers], str], refusing: str
) -> None:
    one, other = Answers(), Answers()
    address = f"ipv4:{refusing},{started(one)},{started(other)}"
    with open_channel(address, PLAINTEXT) as channel:
        method: Any = channel.unary_unary(f"/{NAME}/Unary", None, None)

        def both_are_called() -> bool:
            assert call_once(method, b"", "test", is_idempotent=False) == b"answer"
            return bool(one.calls and other.calls)

        eventually(both_are_called)
        before = Counter(one=one.calls, other=other.calls)
        for _ in range(10):
            call_once(method, b"", "test", is_idempotent=False)
        assert Counter(one=one.calls, other=other.calls) - before == Counter(one=5, other=5)


def test_if_no_endpoint_is_there_a_call_says_so(refusing: str) -> None:
    with pytest.raises(RetriableRemoteStorageError, match=r"test: .*refused"):
        unary(f"ipv4:{refusing},{refusing}")


@pytest.mark.parametrize(
    ("target", "security", "named"),
    [
        ("127.0.0.1:1,127.0.0.1:2", PLAINTEXT, "names several servers; write ipv4:127.0.0.1:1,"),
        ("ipv4:127.0.0.1:1,127.0.0.1:2", ClientSecurity(Path("ca")), "TLS checks one name"),
        ("dns:///rsm", PLAINTEXT, "'rsm' is not HOST:PORT"),
    ],
)
def test_a_target_that_cannot_be_called_is_refused_by_name(
    target: str, security: ClientSecurity, named: str
) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(named)):
        open_channel(target, security)


def test_all_addresses_of_a_host_name_are_tried(started: Callable[[Answers], str]) -> None:
    port = started(Answers()).rpartition(":")[2]
    assert unary(f"dns:///localhost:{port}", 4) == [b"answer"] * 4


def test_a_lost_call_is_repeated_once(started: Callable[[Answers], str]) -> None:
    answers = Answers(lost=1)
    assert unary(started(answers)) == [b"answer"]
    assert answers.calls == 2


def test_a_call_that_is_lost_twice_fails_with_a_retriable_error(
    started: Callable[[Answers], str],
) -> None:
    answers = Answers(lost=3)
    with pytest.raises(RetriableRemoteStorageError, match="CANCELLED"):
        unary(started(answers))
    assert answers.calls == 2


def test_a_call_that_may_not_be_repeated_is_not(started: Callable[[Answers], str]) -> None:
    answers = Answers(lost=1)
    with pytest.raises(RetriableRemoteStorageError, match="CANCELLED"):
        unary(started(answers), is_idempotent=False)
    assert answers.calls == 1


def test_a_stream_is_repeated_only_before_its_first_message(
    started: Callable[[Answers], str],
) -> None:
    answers = Answers(lost=1)
    address = started(answers)
    assert stream(address) == [b"answer"]
    answers.lost = 3
    with pytest.raises(RetriableRemoteStorageError, match="CANCELLED"):
        stream(address, b"lost later")
    assert answers.calls == 3
