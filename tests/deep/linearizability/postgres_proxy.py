"""A proxy before PostgreSQL that can end a connection exactly while COMMIT is under way.

Of PostgreSQL's protocol it knows what it needs: a client's messages are a type, a length, a body;
the first ones, until the start-up message, have no type. A COMMIT is a message of its own.
"""

import socket
from collections.abc import Iterator
from contextlib import suppress
from threading import Event, Lock, Thread

from tests.harness.faults import Cut, CutError, Direction
from tests.harness.proxy import Proxy

COMMIT = "commit"
"""The operation by which `faults` names a COMMIT. Cut(0, REQUEST) ends the connection before the
COMMIT is passed on, Cut(0, RESPONSE) once the server has answered it, without the answer."""

BEFORE_COMMIT = Cut(0, Direction.REQUEST)
AFTER_COMMIT = Cut(0, Direction.RESPONSE)

_TYPE_BYTES, _LENGTH_BYTES = 1, 4
_PROTOCOL_3 = 3
_SIMPLE_QUERY = b"Q"
_PIECE_BYTES = 65_536


class PostgresProxy(Proxy):
    """Relays messages of PostgreSQL's protocol, version 3, without TLS."""

    def __init__(self, upstream: str, seed: int = 0) -> None:
        super().__init__(upstream, seed)
        self._counting = Lock()
        self._commits = 0
        self._cuts = 0

    @property
    def commits(self) -> int:
        """How many COMMITs were passed on to the server."""
        with self._counting:
            return self._commits

    @property
    def cuts(self) -> int:
        """How many connections ended at their COMMIT."""
        with self._counting:
            return self._cuts

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        answers = _Answers(server, client)
        back = Thread(target=answers.pass_on, daemon=True)
        back.start()
        for message in _messages(client):
            if _is_commit(message):
                self._commit(message, server, answers)
            else:
                server.sendall(message)
        server.shutdown(socket.SHUT_WR)
        back.join()

    def _commit(self, message: bytes, server: socket.socket, answers: "_Answers") -> None:
        fault = self.faults.take(COMMIT)
        if fault == BEFORE_COMMIT:
            self._count(cut=True)
            raise CutError("before COMMIT")
        if fault == AFTER_COMMIT:
            answers.keep_back()
        self._count(commit=True)  # before its answer can be there
        server.sendall(message)
        if fault == AFTER_COMMIT:
            answers.wait_for_one()
            self._count(cut=True)
            raise CutError("after COMMIT")

    def _count(self, *, commit: bool = False, cut: bool = False) -> None:
        with self._counting:
            self._commits += commit
            self._cuts += cut


class _Answers:
    """What comes back from the server; once kept back it goes nowhere."""

    def __init__(self, server: socket.socket, client: socket.socket) -> None:
        self._server, self._client = server, client
        self._kept_back = False
        self._answered = Event()

    def keep_back(self) -> None:
        """Of what the server sends from now on. Nothing is under way: COMMIT waits its turn."""
        self._kept_back = True

    def wait_for_one(self) -> None:
        """Until the server has answered what was kept back, or is gone."""
        self._answered.wait()

    def pass_on(self) -> None:
        try:
            while data := self._server.recv(_PIECE_BYTES):
                if self._kept_back:
                    break
                self._client.sendall(data)
            else:
                self._client.shutdown(socket.SHUT_WR)
        except OSError:  # one side is gone, or a fault ends both: the other one wakes
            for one in (self._server, self._client):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self._answered.set()


def _messages(client: socket.socket) -> Iterator[bytes]:
    """What the client sends, message by message, to its orderly end."""
    with client.makefile("rb") as stream:
        is_started = False
        while True:
            head = stream.read(_TYPE_BYTES + _LENGTH_BYTES if is_started else _LENGTH_BYTES)
            if len(head) < _LENGTH_BYTES:
                return
            length_bytes = int.from_bytes(head[-_LENGTH_BYTES:])
            body = stream.read(length_bytes - _LENGTH_BYTES)
            yield head + body
            # Before it a client may ask for encryption, which the server refuses with one byte.
            is_started = is_started or int.from_bytes(body[:2]) == _PROTOCOL_3


def _is_commit(message: bytes) -> bool:
    return (
        message[:_TYPE_BYTES] == _SIMPLE_QUERY
        and message[_TYPE_BYTES + _LENGTH_BYTES :] == b"COMMIT\0"
    )
