"""Trouble the calls of one partition; those of all others reach the real manager."""

from collections.abc import Callable
from threading import Event
from typing import Any

from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata

GIVE_UP_S = 60.0


class TroubledPartition:
    """The real RSM or RLMM, except for calls of some names about one partition.

    Args:
        trouble: called instead; it may raise, or wait and return.
    """

    def __init__(
        self,
        manager: object,
        partition: TopicIdPartition,
        names: frozenset[str],
        trouble: Callable[[], None],
    ) -> None:
        self._manager: Any = manager
        self._partition = partition
        self._names = names
        self._trouble = trouble

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._manager, name)
        if name not in self._names:
            return method

        def called(about: Any, *args: Any, **kwargs: Any) -> Any:
            if partition_of(about) == self._partition:
                self._trouble()
            return method(about, *args, **kwargs)

        return called


def partition_of(about: TopicIdPartition | RemoteLogSegmentMetadata) -> TopicIdPartition:
    """Return the partition that the first argument of a call names."""
    if isinstance(about, TopicIdPartition):
        return about
    return about.remote_log_segment_id.topic_id_partition


class Hang:
    """Hang until a test lets go, or for a minute."""

    def __init__(self) -> None:
        self._let_go = Event()

    def __call__(self) -> None:
        assert self._let_go.wait(GIVE_UP_S)

    def let_go(self) -> None:
        self._let_go.set()
