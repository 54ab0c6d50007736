"""Run a broker that continues to roll segments whatever happens to the tier."""

from pathlib import Path
from threading import Event, Thread
from typing import Self

from tests.harness.synthetic_log import roll_segment


class RollingBroker:
    """Fills and rolls the active segment of one folder after the other, inside `with`.

    The folders are those of `make_log_dir`.

    Args:
        kept_segments: of each folder; older ones are deleted. None: all.

    Attributes:
        rolled: segments so far.
    """

    def __init__(
        self,
        folders: list[Path],
        segment_bytes: int,
        rolls_per_s: float,
        kept_segments: int | None = None,
    ) -> None:
        self._folders = sorted(folders)
        self._segment_bytes = segment_bytes
        self._kept_segments = kept_segments
        self._interval_s = 1 / rolls_per_s
        self._stopping = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self.rolled = 0

    def stop(self) -> None:
        """Stop rolling after the present segment."""
        self._stopping.set()
        self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        ends = {folder: int(max(folder.glob("*.log")).stem) for folder in self._folders}
        while not self._stopping.wait(self._interval_s):
            folder = self._folders[self.rolled % len(self._folders)]
            ends[folder] = roll_segment(folder, ends[folder], self._segment_bytes)
            self._delete_oldest(folder)
            self.rolled += 1

    def _delete_oldest(self, folder: Path) -> None:
        if self._kept_segments is None:
            return
        for log in sorted(folder.glob("*.log"))[: -self._kept_segments]:
            for file in folder.glob(f"{log.stem}.*"):
                file.unlink()
