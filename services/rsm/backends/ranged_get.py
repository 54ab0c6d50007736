"""A range of an object as one stream, which goes on where the store broke it off."""

import logging
import random
import re
from collections.abc import Callable, Generator

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from services.api.calls import current_call
from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.rpc.bounded_lines import BoundedLines
from services.rsm.backends.chunks import CHUNK_BYTES, read_chunks, require_reaches
from services.rsm.waiting import Waiting

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_lines = BoundedLines(logging.getLogger(__name__))


class BrokenBodyError(Exception):
    """The connection ended, or fell silent, before the last byte of a body. Never leaves here."""


def require_range(response: BaseHTTPResponse, start: int, end: int, what: str) -> None:
    """Hold the head of an answer to the range that was asked for, before a byte is believed.

    Raises:
        CorruptSegmentError: the object ends before `end`.
        RetriableRemoteStorageError: the body has another length than the range.
        RemoteStorageError: it is the whole object, or another range.
    """
    if response.status != 206:
        raise RemoteStorageError(f"{what}: the object store ignored the range")
    text = response.headers.get("content-range", "")
    found = _CONTENT_RANGE.fullmatch(text)
    if found is None:
        raise RemoteStorageError(f"{what}: not a Content-Range: {text!r}")
    first, last, object_size = found.groups()
    if object_size != "*":
        require_reaches(end, int(object_size), what)
    if (int(first), int(last)) != (start, end):
        raise RemoteStorageError(f"{what}: the object store sends {text!r}")
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length) != end - start + 1:
        raise RetriableRemoteStorageError(f"{what}: the body has {length} bytes")


def read_body(
    response: BaseHTTPResponse, size_bytes: int, what: str
) -> Generator[bytes, None, None]:
    """Chunks of `size_bytes` in all, as they are on the wire.

    Raises:
        BrokenBodyError: the store may well have the rest.
        RetriableRemoteStorageError: the body ended in order, and early.
    """

    def read(most: int) -> bytes:
        try:
            # With decoding, urllib3 keeps what came before a break to itself.
            return response.read(most, decode_content=False)
        except HTTPError as e:
            raise BrokenBodyError(type(e).__name__) from e

    return read_chunks(read, size_bytes, what)


class Resumes:
    """Goes on with streams that break off."""

    def __init__(self, fruitless: int, waiting: Waiting) -> None:
        """So many breaks in a row may each bring less than 1 MiB: `fruitless`."""
        self._fruitless = fruitless
        self._waiting = waiting

    def resumed(
        self, get: Callable[[int], Generator[bytes, None, None]], start: int, what: str
    ) -> Generator[bytes, None, None]:
        """What `get(position)` streams from `start` on, begun again at the next byte where it
        breaks.

        Raises:
            RetriableRemoteStorageError: one break too many, the caller is gone, or the service
                stops.
        """
        position, breaks = start, 0
        while True:
            began = position
            body = get(position)
            try:
                for chunk in body:
                    position += len(chunk)
                    yield chunk
                return
            except BrokenBodyError as e:
                breaks = 1 if position - began >= CHUNK_BYTES else breaks + 1
                text = f"{what}: the body broke off at byte {position} ({e})"
                if breaks > self._fruitless:
                    raise RetriableRemoteStorageError(text) from e
                self._pause(breaks, text)
                _lines.info("%s; asking for the rest", text)
            finally:
                body.close()

    def _pause(self, breaks: int, why: str) -> None:
        """None before the first resume; then longer each time, and not all at once."""
        is_active = current_call().is_active
        if breaks > 1:
            longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**breaks)
            end_s = self._waiting.now() + random.uniform(longest_s / 2, longest_s)
            try:
                self._waiting.until(end_s, is_active)
            except RetriableRemoteStorageError as e:
                raise RetriableRemoteStorageError(f"{why}; {e}") from e
        if not is_active():
            raise RetriableRemoteStorageError(f"{why}, and the caller is gone")
