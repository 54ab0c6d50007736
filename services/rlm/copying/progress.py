"""What a person watching a copy is told."""

from typing import Protocol

from services.api.ids import TopicIdPartition


class Progress(Protocol):
    """Told of copies as they go; called from several threads at once."""

    def planned(self, name: TopicIdPartition, segments: int, size_bytes: int) -> None:
        """So much of a partition is about to be copied; each pass tells anew."""
        ...

    def sent(self, name: TopicIdPartition, size_bytes: int) -> None:
        """Bytes of logs went out; negative: those of a copy that failed count no longer."""
        ...

    def copied(self, name: TopicIdPartition, start_offset: int, size_bytes: int) -> None:
        """A segment is COPY_SEGMENT_FINISHED."""
        ...


class NoProgress:
    """Nobody watches."""

    def planned(self, name: TopicIdPartition, segments: int, size_bytes: int) -> None:
        pass

    def sent(self, name: TopicIdPartition, size_bytes: int) -> None:
        pass

    def copied(self, name: TopicIdPartition, start_offset: int, size_bytes: int) -> None:
        pass
