"""Send Kafka's ListOffsets directly: a client library supports only its oldest queries."""

import socket
import struct
from enum import IntEnum

_API_KEY, _API_VERSION = 2, 9  # the version that has every Question here
_CORRELATION_ID = 1
_TIMEOUT_S = 30.0
_NO_TAGS = b"\0"
_ANSWER = struct.Struct(">ihqqi")
_NOT_LEADER_OR_FOLLOWER = 6


class NotLeaderError(RuntimeError):
    """The client has to retry, or call another broker."""


class Question(IntEnum):
    """A special value in place of a timestamp."""

    LATEST = -1
    EARLIEST = -2
    EARLIEST_LOCAL = -4  # KIP-405
    LATEST_TIERED = -5  # KIP-1005: the last offset that is in the tier; -1: none


def list_offset(bootstrap_servers: str, topic: str, partition: int, question: Question) -> int:
    """Return the offset from the broker at HOST:PORT, which must lead the partition.

    Raises:
        NotLeaderError: the broker does not lead the partition, or does not know yet that it does.
        RuntimeError: the broker responds with another error.
    """
    host, _, port = bootstrap_servers.rpartition(":")
    request = _request(topic, partition, question)
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            response = stream.read(size)
    return _offset(response, topic)


def _request(topic: str, partition: int, question: Question) -> bytes:
    header = struct.pack(">hhih", _API_KEY, _API_VERSION, _CORRELATION_ID, -1) + _NO_TAGS
    ordinary_client, read_uncommitted, any_epoch = -1, 0, -1
    asked = struct.pack(">iiq", partition, any_epoch, question) + _NO_TAGS
    topics = _array_of_one(_string(topic) + _array_of_one(asked) + _NO_TAGS)
    return header + struct.pack(">ib", ordinary_client, read_uncommitted) + topics + _NO_TAGS


def _offset(response: bytes, topic: str) -> int:
    header = struct.Struct(">i").size + len(_NO_TAGS)
    throttle_time = struct.Struct(">i").size
    place = header + throttle_time + len(_array_of_one(_string(topic))) + len(_array_of_one(b""))
    _, error, _, offset, _ = _ANSWER.unpack_from(response, place)
    if error == _NOT_LEADER_OR_FOLLOWER:
        raise NotLeaderError(topic)
    if error:
        raise RuntimeError(f"ListOffsets of {topic}: error {error}")
    return int(offset)


def _array_of_one(item: bytes) -> bytes:
    return b"\2" + item  # in the compact form a length is written plus one


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > 126:
        raise ValueError(f"{text}: more than one byte of length")
    return bytes([len(data) + 1]) + data
