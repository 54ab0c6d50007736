"""Decode requests, and frame answers, with the records of a Fetch inserted unchanged.

kafka-python copies records three times, a whole answer at once: memory of a few MiB, which the
system hands out for each copy and clears first. That costs more than all else of a Fetch.
"""

import secrets
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any

from services.common.copied_bytes import BYTES_COPIED

Buffer = bytes | bytearray | memoryview

_SIZE = Struct(">i")
_TOKEN_BYTES = 16
_BLOCK_BYTES = 256 * 1024
"""Memory of this size is used again and again."""


class UnservedRequestError(Exception):
    """The error for a request that is not served, or not Kafka's: the connection is closed."""


def decoded(request: Any, api_key: int, version: int, data: bytes) -> Any:
    """Decode the bytes of a client, with their header.

    Raises:
        UnservedRequestError: they are no such request.
    """
    try:
        return request.decode(data, version=version, header=True)
    except Exception as e:  # A boundary: bytes of a client, and kafka-python names no errors.
        raise UnservedRequestError(f"API key {api_key}: cannot be decoded: {e}") from e


class Records:
    """The records of one answer, by the tokens that stand for them while the rest is encoded."""

    def __init__(self) -> None:
        self._by_token: dict[bytes, Sequence[Buffer]] = {}

    def token_for(self, records: Sequence[Buffer]) -> bytes:
        """Return the token to encode in place of records. Must be called in their order."""
        if not any(map(len, records)):
            return b""
        # Random, so that no name that a client knows or chooses equals it.
        token = secrets.token_bytes(_TOKEN_BYTES)
        self._by_token[token] = records
        return token

    def framed(self, response: Any, version: int, correlation_id: int) -> Sequence[Buffer]:
        """Return the bytes to send, in order; `response` may have tokens in place of records.

        They are copies, so that an answer that waits for its client holds its own size only.
        """
        response.API_VERSION = version
        response.with_header(correlation_id)
        encoded = response.encode(header=True, framed=True)
        if not self._by_token:
            return [encoded]
        length = _compact_length if response.flexible_version_q(version) else _SIZE.pack
        pieces: list[Buffer] = []
        at = _SIZE.size  # The size of the frame changes.
        for token, records in self._by_token.items():
            token_at = encoded.index(token, at)
            before = encoded[at : token_at - len(length(_TOKEN_BYTES))]
            pieces += (before, length(sum(map(len, records))), *records)
            at = token_at + _TOKEN_BYTES
        pieces.append(encoded[at:])
        BYTES_COPIED.labels("answer").inc(sum(map(len, pieces)))
        return list(_blocks([_SIZE.pack(sum(map(len, pieces))), *pieces]))


def _blocks(pieces: Sequence[Buffer]) -> Iterator[bytes]:
    """Join pieces, of which many are one small batch each, to blocks."""
    block: list[Buffer] = []
    size = 0
    for piece in pieces:
        block.append(piece)
        size += len(piece)
        if size >= _BLOCK_BYTES:
            yield b"".join(block)
            block, size = [], 0
    yield b"".join(block)


def _compact_length(size: int) -> bytes:
    """Encode a length as an unsigned varint of one more: 0 is null (KIP-482)."""
    number, encoded = size + 1, bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
