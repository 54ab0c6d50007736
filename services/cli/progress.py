"""A progress bar over the bytes of a copy, on standard error."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from services.api.ids import TopicIdPartition
from services.cli.output import size_text


class ShipBar:
    """Satisfies services.rlm.copying.progress.Progress.

    It has no end to run to: what is to be copied of a partition is known only when its turn comes,
    and a sum of those that had theirs would be taken for the whole.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: dict[TopicIdPartition, int] = defaultdict(int)
        self._sent: dict[TopicIdPartition, int] = defaultdict(int)
        self._segments = 0
        self._bar = bytes_bar()
        self._task = self._bar.add_task("shipping", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def planned(self, name: TopicIdPartition, segments: int, size_bytes: int) -> None:
        with self._lock:
            self._planned[name] = self._sent[name] + size_bytes
            self._show()

    def sent(self, name: TopicIdPartition, size_bytes: int) -> None:
        with self._lock:
            self._sent[name] += size_bytes
            self._show()

    def copied(self, name: TopicIdPartition, start_offset: int, size_bytes: int) -> None:
        with self._lock:
            self._segments += 1
            self._show()

    def text(self) -> str:
        """What stands before the bar."""
        found = size_text(sum(self._planned.values()))
        return f"shipped {self._segments} segments; {found} to ship found so far"

    def _show(self) -> None:
        self._bar.update(self._task, completed=sum(self._sent.values()), description=self.text())


def bytes_bar() -> Progress:
    """Not started yet; where standard error is no terminal, it draws nothing."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


@contextmanager
def counter() -> Iterator[Callable[[str, int], None]]:
    """A line on standard error that says what is counted and how far; call it with both. Where
    standard error is no terminal, it draws nothing."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), MofNCompleteColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, count: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=None)
            bar.update(tasks[what], completed=count)

        yield show
