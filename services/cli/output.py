"""Print tables for people and JSON for scripts, progress and failures."""

import json
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Self

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
from services.api.topic_config import TopicConfig
from services.rlm.roles.stopping import kept_because

if TYPE_CHECKING:
    from rich.console import Console


# A table that goes into a file or a pipe is as wide as it needs to be.
_WIDTH_OF_NO_TERMINAL = 1_000


class Format(StrEnum):
    """What a command prints."""

    TABLE = "table"
    JSON = "json"


def print_json(value: object) -> None:
    """One JSON document on one line."""
    print(json.dumps(value), flush=True)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; columns of numbers are set to the right. Nothing is cut off: what is too long for
    the terminal goes on in the next line."""
    from rich.table import Table
    from rich.text import Text

    made = [list(row) for row in rows]
    table = Table(title=Text(title, "bold"), title_justify="left")
    for number, column in enumerate(columns):
        numeric = bool(made) and all(isinstance(row[number], int) for row in made)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in made:
        table.add_row(*(Text(f"{v:,}" if isinstance(v, int) else str(v)) for v in row))
    stdout_console().print(table)


def stdout_console() -> "Console":
    """As wide as the terminal, or as what is printed needs."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _WIDTH_OF_NO_TERMINAL)


def say(text: str) -> None:
    """A line of progress, for people, on standard error."""
    from rich.console import Console

    # Without markup: a path may have brackets in it.
    console = Console(stderr=True, markup=False, emoji=False)
    console.print(text, highlight=False, soft_wrap=True)


def size_text(size_bytes: int) -> str:
    """1536 -> "1.5 KiB"."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


class ShipBar:
    """Satisfies services.rlm.copy.report.Progress.

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


EXIT_PARTIAL = 1
EXIT_USAGE = 2
EXIT_FAILED = 3


class CommandError(Exception):
    """The command cannot go on; the message says what was wrong and what to do."""

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def reported() -> Iterator[None]:
    """Print the failures that a user can cause or must know of; anything else is a defect of ours
    and keeps its traceback."""
    try:
        yield
    except CommandError as e:
        _exit(e, e.exit_code)
    except Exception as e:
        exit_code = _exit_code(e)
        if exit_code is None:
            raise
        _exit(e, exit_code)


def _exit_code(error: Exception) -> int | None:
    """None: no failure that a user must know by a sentence."""
    # Imported only now: a command that succeeds need not wait for them.
    from services.api.errors import InvalidRequestError, RemoteStorageError
    from services.local.data_directory import DataDirectoryError
    from services.local.postgres import ClusterError
    from services.local.process import ProcessError
    from services.rlm.kafka_log.errors import LogDirError

    if isinstance(error, InvalidRequestError | DataDirectoryError | ClusterError | LogDirError):
        return EXIT_USAGE
    if isinstance(error, RemoteStorageError | ProcessError):
        return EXIT_FAILED
    return None


def _exit(error: Exception, exit_code: int) -> None:
    print(f"sediment: {error}", file=sys.stderr)
    raise SystemExit(exit_code)


def disabled_text(config: TopicConfig) -> str | None:
    """None: these settings alone delete nothing of it."""
    if config.remote_storage_enable is not False or kept_because(config):
        return None
    return (
        "remote.storage.enable=false, remote.log.delete.on.disable=true: its leader's RLM deletes "
        "all of it, by these settings or when StopPartitions says so (docs/retention.md), whatever "
        "retention says; before that remote.storage.enable=true takes it back, sediment.hold keeps "
        "it"
    )
