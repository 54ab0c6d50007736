"""What one pass over one partition did, and what it left."""

from dataclasses import dataclass, field

from services.api.remote_log_manager import Problem
from services.rlm.copying.lost_ranges import Range


@dataclass
class PassReport:
    """What one pass did.

    Attributes:
        copied_segments, copied_bytes: COPY_SEGMENT_FINISHED by this pass.
        copy_requests: copies begun.
        copy_errors, copy_retriable_errors: those that failed; of these the latter may work the next
            time. One that was to stop is neither.
        present_segments, present_bytes: rolled segments that the tier had before.
        unsettled_segments: rolled segments that are not in the tier and that no pass may copy yet:
            they reach `settled_before_offset` (LocalLog.last_stable_offset).
        cleaned_attempts: attempts left behind that are gone now.
        problems: what is held back or found to be lost, and what was mended.
        recorded: those of the problems that are losses which this pass found first and recorded, or
            perhaps recorded.
        known_gaps: what was lost and recorded before; no problem any more.
        failure: why the pass did not do all that can be done; empty: it did.
        may_pass: the failure may be gone when the pass is repeated soon.
        folder_is_gone: the broker gave the partition up, or moved it to another disk; what has the
            folder's name now, if anything, is another topic's.
        more_after_s: the pass gave way with segments left to copy, to others or to one under a
            later leader epoch: it is to go on after so many seconds; None: it did not.
    """

    copied_segments: int = 0
    copied_bytes: int = 0
    copy_requests: int = 0
    copy_errors: int = 0
    copy_retriable_errors: int = 0
    present_segments: int = 0
    present_bytes: int = 0
    unsettled_segments: int = 0
    settled_before_offset: int = 0
    cleaned_attempts: int = 0
    problems: list[Problem] = field(default_factory=list)
    recorded: list[Problem] = field(default_factory=list)
    known_gaps: list[Range] = field(default_factory=list)
    failure: str = ""
    may_pass: bool = False
    folder_is_gone: bool = False
    more_after_s: float | None = None

    def failed(self, error: Exception | str, *, may_pass: bool) -> None:
        self.failure, self.may_pass = str(error), may_pass

    @property
    def held_segments(self) -> int:
        return sum(problem.held_segments for problem in self.problems)

    @property
    def found_nothing(self) -> bool:
        """There was nothing to be done, nor to be told."""
        found = (self.copied_segments, self.cleaned_attempts, self.problems, self.failure)
        return not any(found)
