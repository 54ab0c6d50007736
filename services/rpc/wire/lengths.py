"""Lengths as protobuf writes them: seven bits a byte, the lowest first."""

_MORE = 0x80
_LONGEST_BYTES = 5  # 32 bits: no message of ours is longer.


def length_to_wire(length: int) -> bytes:
    written = bytearray()
    while length >= _MORE:
        written.append(length & (_MORE - 1) | _MORE)
        length >>= 7
    written.append(length)
    return bytes(written)


def read_length(message: bytes, at: int) -> tuple[int, int] | None:
    """The length that begins at byte `at`, and where it ends; None: none does."""
    length = 0
    for index, byte in enumerate(message[at : at + _LONGEST_BYTES]):
        length |= (byte & (_MORE - 1)) << 7 * index
        if byte < _MORE:
            return length, at + index + 1
    return None
