"""Apply a fault to the way in which bytes are sent on."""

from collections.abc import Callable

from tests.harness.faults import Corrupt, Direction, Ending, Fault, FaultError, Throttle
from tests.harness.http_messages import Send

Wait = Callable[[float], object]
"""Waits so many seconds, or until the wait is no longer needed."""

_SLICES_PER_S = 50


def through(fault: Fault | None, direction: Direction, send: Send, wait: Wait) -> Send:
    """Return `send` as the fault changes it in this direction."""
    if isinstance(fault, Ending) and fault.direction is direction:
        return _ending(send, fault)
    if isinstance(fault, Corrupt) and fault.direction is direction:
        return _corrupting(send, fault.at_byte)
    if isinstance(fault, Throttle):
        return _throttled(send, fault.bytes_per_s, wait)
    return send


def _ending(send: Send, fault: Ending) -> Send:
    """Return a `send` that passes on exactly `after_bytes` bytes and then raises FaultError."""
    left = fault.after_bytes or 0

    def send_until_the_end(data: bytes) -> None:
        nonlocal left
        send(data[:left])
        left -= min(left, len(data))
        if left == 0:
            raise FaultError(fault)

    return send_until_the_end


def _corrupting(send: Send, at_byte: int) -> Send:
    passed = 0

    def send_corrupted(data: bytes) -> None:
        nonlocal passed
        place = at_byte - passed
        passed += len(data)
        if 0 <= place < len(data):
            data = data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]
        send(data)

    return send_corrupted


def _throttled(send: Send, bytes_per_s: int, wait: Wait) -> Send:
    slice_bytes = max(1, bytes_per_s // _SLICES_PER_S)

    def send_slowly(data: bytes) -> None:
        for start in range(0, len(data), slice_bytes):
            piece = data[start : start + slice_bytes]
            wait(len(piece) / bytes_per_s)
            send(piece)

    return send_slowly
