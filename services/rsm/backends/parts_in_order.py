"""Write the parts of one object, which many threads bring, to a library that takes a stream."""

from collections.abc import Callable
from threading import Condition

from services.api.calls import current_call
from services.api.errors import RetriableRemoteStorageError
from services.rsm.backends.protocol import Part

_LOOK_EVERY_S = 0.1


class PartsInOrder:
    """Writes parts in the order of their numbers, whoever brings them."""

    def __init__(self, write: Callable[[memoryview], object]) -> None:
        """Begin with part 1; `write` must not use the bytes after it has returned."""
        self._write = write
        self._turns = Condition()
        self._next = 1
        self._failed = False

    def write(self, part: Part, what: str) -> None:
        """Wait for the parts before this one, and write it.

        Raises:
            RetriableRemoteStorageError: a part before it failed, or the caller has left.
        """
        with self._turns:
            while self._next != part.number and not self._failed:
                # The part before may have been given up before it came here.
                if not current_call().is_active():
                    self._failed = True
                    break
                self._turns.wait(_LOOK_EVERY_S)
            if self._failed:
                raise RetriableRemoteStorageError(f"{what}: a part before it was not written")
        try:
            self._write(part.data)
        except BaseException:
            self._end_turn(failed=True)
            raise
        self._end_turn(failed=False)

    def _end_turn(self, *, failed: bool) -> None:
        with self._turns:
            self._failed |= failed
            self._next += 1
            self._turns.notify_all()
