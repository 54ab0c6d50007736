"""The crc32c of bytes of which only the crc32cs of their pieces are known.

A crc is a polynomial modulo Castagnoli's, bits reversed: x^0 is the highest of 32 bits. Bytes that
follow multiply what came before them by x^8 each.
"""

from collections.abc import Iterable
from functools import lru_cache, reduce

_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31
_X8 = _ONE >> 8
_32_BITS = 0xFFFFFFFF


def joined_crc32c(pieces: Iterable[tuple[int, int]]) -> int:
    """Of the bytes of all `pieces`, in order: the crc32c and the size in bytes of each."""
    return reduce(lambda crc, piece: _times(_shift(piece[1]), crc) ^ piece[0], pieces, 0)


@lru_cache(maxsize=16)
def _shift(size_bytes: int) -> int:
    """By what so many bytes multiply the crc of those before them; most pieces have one size."""
    power, square = _ONE, _X8
    while size_bytes:
        if size_bytes & 1:
            power = _times(power, square)
        square = _times(square, square)
        size_bytes >>= 1
    return power


def _times(a: int, b: int) -> int:
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & _32_BITS
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product
