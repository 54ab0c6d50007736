"""`<offset>.snapshot`: what the broker knew of every producer before `offset`.

Source: kafka-storage ProducerStateManager.readSnapshot.
"""

from struct import Struct

from crc32c import crc32c

_PREFIX = Struct(">hIi")
_ENTRY = Struct(">qhiqiqiq")
_CRC_COVERS_FROM = 6
VERSION = 1


def open_transactions(snapshot: bytes) -> dict[int, int]:
    """Producer id to the first offset of its open transaction, of those that have one.

    Raises:
        ValueError: another version, a wrong CRC, or a count that does not fit the length.
    """
    if len(snapshot) < _PREFIX.size:
        raise ValueError(f"only {len(snapshot)} bytes")
    version, crc, count = _PREFIX.unpack_from(snapshot)
    if version != VERSION:
        raise ValueError(f"version must be {VERSION}, is {version}")
    if crc32c(snapshot[_CRC_COVERS_FROM:]) != crc:
        raise ValueError("wrong CRC-32C")
    if len(snapshot) != _PREFIX.size + count * _ENTRY.size:
        raise ValueError(f"{count} producers announced in {len(snapshot)} bytes")
    entries = _ENTRY.iter_unpack(snapshot[_PREFIX.size :])
    return {producer: first for producer, *_, first in entries if first >= 0}
