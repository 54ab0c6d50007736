"""Read and write Kafka's flexible encoding: varints, compact strings and arrays, tagged fields."""

import struct
from collections.abc import Callable, Mapping
from typing import TypeVar
from uuid import UUID

_INT8, _INT32, _INT64 = struct.Struct(">b"), struct.Struct(">i"), struct.Struct(">q")
_UVARINT_BYTES = 5
"""The most bytes of an unsigned varint of 32 bits (Kafka: ByteUtils.readUnsignedVarint)."""
_UINT32 = 2**32 - 1

T = TypeVar("T")


class EncodingError(ValueError):
    """Bytes are not what the encoding allows; the text says what, and at which byte."""


class Reader:
    """Read values one after another.

    Each method raises EncodingError if the data ends within its value, or has another form.

    Attributes:
        position: of the next byte.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def raw(self, size: int, what: str) -> bytes:
        end = self.position + size
        if end > len(self._data):
            have = len(self._data) - self.position
            raise EncodingError(f"byte {self.position}: {what} has {size} bytes, {have} are left")
        data = self._data[self.position : end]
        self.position = end
        return data

    def int8(self, what: str) -> int:
        return self._number(_INT8, what)

    def int32(self, what: str) -> int:
        return self._number(_INT32, what)

    def int64(self, what: str) -> int:
        return self._number(_INT64, what)

    def _number(self, form: struct.Struct, what: str) -> int:
        (number,) = form.unpack(self.raw(form.size, what))
        assert isinstance(number, int)
        return number

    def uuid(self, what: str) -> UUID:
        return UUID(bytes=self.raw(16, what))

    def uvarint(self, what: str) -> int:
        begin, value = self.position, 0
        for shift in range(0, 7 * _UVARINT_BYTES, 7):
            byte = self.raw(1, what)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                # As in Java, bits above the 32nd are dropped.
                return value & _UINT32
        raise EncodingError(f"byte {begin}: {what} is longer than {_UVARINT_BYTES} bytes")

    def text(self, what: str) -> str:
        begin, data = self.position, self.nullable_bytes(what)
        if data is None:
            raise EncodingError(f"byte {begin}: {what} is null")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as e:
            raise EncodingError(f"byte {begin}: {what} is not UTF-8") from e

    def nullable_bytes(self, what: str) -> bytes | None:
        size = self.uvarint(f"the length of {what}")
        return self.raw(size - 1, what) if size else None

    def array(self, item: Callable[[], T], what: str) -> list[T]:
        begin, size = self.position, self.uvarint(f"the length of {what}")
        if size == 0:
            raise EncodingError(f"byte {begin}: {what} is null")
        # Each item has a byte at least, so that a false count ends with the data.
        return [item() for _ in range(size - 1)]

    def tags(self, what: str) -> dict[int, bytes]:
        """Return the tagged fields at the end of a struct, by tag, which must ascend."""
        tags: dict[int, bytes] = {}
        for _ in range(self.uvarint(f"the number of tagged fields of {what}")):
            begin, tag = self.position, self.uvarint(f"a tag of {what}")
            if tags and tag <= max(tags):
                raise EncodingError(f"byte {begin}: the tags of {what} do not ascend at {tag}")
            tags[tag] = self.raw(self.uvarint(f"the length of tag {tag}"), f"tag {tag} of {what}")
        return tags

    def end(self, what: str) -> None:
        """Raise EncodingError unless all data was read."""
        if left := len(self._data) - self.position:
            raise EncodingError(f"byte {self.position}: {left} bytes follow {what}")


class Writer:
    """Write values one after another into `data`."""

    def __init__(self) -> None:
        self.data = bytearray()

    def int8(self, value: int) -> None:
        self.data += _INT8.pack(value)

    def int32(self, value: int) -> None:
        self.data += _INT32.pack(value)

    def int64(self, value: int) -> None:
        self.data += _INT64.pack(value)

    def uuid(self, value: UUID) -> None:
        self.data += value.bytes

    def uvarint(self, value: int) -> None:
        while value >= 0x80:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def text(self, value: str) -> None:
        self.nullable_bytes(value.encode("utf-8"))

    def nullable_bytes(self, value: bytes | None) -> None:
        if value is None:
            self.uvarint(0)
            return
        self.uvarint(len(value) + 1)
        self.data += value

    def tags(self, tags: Mapping[int, bytes] | None = None) -> None:
        """Write the tagged fields at the end of a struct."""
        fields = sorted((tags or {}).items())
        self.uvarint(len(fields))
        for tag, value in fields:
            self.uvarint(tag)
            self.uvarint(len(value))
            self.data += value
