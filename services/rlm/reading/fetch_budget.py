"""How much one fetch may still return."""

from dataclasses import dataclass


@dataclass
class RequestBudget:
    """Of all partitions together.

    Attributes:
        left_bytes: what is left of the request's limit.
        empty: nothing was returned yet: the next batch is, whatever its size.
    """

    left_bytes: int
    empty: bool = True


class PartitionBudget:
    """Of one partition, within its request."""

    def __init__(self, request: RequestBudget, max_bytes: int) -> None:
        self._request = request
        self._left_bytes = max_bytes
        self.exhausted = False

    @property
    def left_bytes(self) -> int:
        return max(min(self._left_bytes, self._request.left_bytes), 0)

    def takes(self, size_bytes: int) -> bool:
        """Count a batch in, if it still fits; the first that does not ends the partition."""
        if size_bytes > self.left_bytes and not self._request.empty:
            self.exhausted = True
            return False
        self._request.empty = False
        self._request.left_bytes -= size_bytes
        self._left_bytes -= size_bytes
        return True
