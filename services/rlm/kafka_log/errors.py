"""What can be wrong with a log directory."""

from pathlib import Path

from services.api.remote_log_manager import Problem, ProblemKind


class LogDirError(Exception):
    """A log directory cannot be used at all: missing, empty, unreadable or not Kafka's."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class BatchError(Exception):
    """Bytes that are not the record batch that should be there.

    Attributes:
        position: of the first byte at fault, in the file.
        offset: the record offset it begins at, or that was expected there.
    """

    def __init__(self, kind: ProblemKind, position: int, offset: int, reason: str) -> None:
        super().__init__(f"{reason} (position {position}, offset {offset})")
        self.kind = kind
        self.position = position
        self.offset = offset


class LogFileError(Exception):
    """A file of a partition is missing or is not what its name says."""

    def __init__(
        self, kind: ProblemKind, path: Path, reason: str, offset: int | None = None
    ) -> None:
        super().__init__(f"{path}: {reason}")
        self.kind = kind
        self.path = path
        self.reason = reason
        self.offset = offset

    def problem(self, held_segments: int) -> Problem:
        return Problem(self.kind, str(self.path), self.reason, self.offset, held_segments)


class SegmentVanishedError(Exception):
    """The broker deleted a segment while it was being read; list the directory again."""


def unreadable(path: Path, error: OSError) -> LogFileError:
    """The operating system's refusal as a problem of `path`."""
    return LogFileError(ProblemKind.UNREADABLE, path, error.strerror or type(error).__name__)
