"""Options that every sweep takes, and their defaults; imports nothing heavy."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from services.api.remote_storage_manager import MAX_DELETE_BATCH
from services.api.validation import require
from spark_jobs.connections import Services

MAX_SEGMENTS = 10_000
BATCH_SIZE = 500
RETRY_FOR_S = 30.0
MASTER = "local[*]"
DRIVER_MEMORY = "1g"
REMOVAL_GRACE_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Options of a sweep; the names are those of the command line.

    Attributes:
        rsm, rlmm: HOST:PORT.
        topics: only these, by name; none: all.
        apply: False: a dry run, which changes nothing.
        max_segments, max_bytes: the plan may name no more new segments, nor more bytes of them;
            else nothing is done. None: no limit.
        batch_size: so many segments go into one call of RSM.
        retry_for_s: how long a task waits for a service that is away.
        master, driver_memory: as Spark has them.
        work_dir: where plan and outcomes are kept; every executor must see it under this path.
            None: in a temporary directory of this machine, which goes at the end.
        report: where the report is written, JSON; None: nowhere.
    """

    rsm: str
    rlmm: str
    topics: tuple[str, ...] = ()
    apply: bool = False
    max_segments: int = MAX_SEGMENTS
    max_bytes: int | None = None
    batch_size: int = BATCH_SIZE
    retry_for_s: float = RETRY_FOR_S
    master: str = MASTER
    driver_memory: str = DRIVER_MEMORY
    work_dir: Path | None = None
    report: Path | None = None

    def __post_init__(self) -> None:
        require(self.max_segments >= 0, "--max-segments", "must not be negative")
        require((self.max_bytes or 0) >= 0, "--max-bytes", "must not be negative")
        fits = 1 <= self.batch_size <= MAX_DELETE_BATCH
        require(fits, "--batch-size", f"must be 1 to {MAX_DELETE_BATCH}, is {self.batch_size}")
        require(self.retry_for_s >= 0, "--retry-for-s", "must not be negative")
        if self.report is not None:
            writable = self.report.parent.is_dir() and not self.report.is_dir()
            require(writable, "--report", f"{self.report} is not a file in a directory that exists")
        if self.work_dir is not None:
            is_file = self.work_dir.exists() and not self.work_dir.is_dir()
            require(not is_file, "--work-dir", f"{self.work_dir} is not a directory")

    @property
    def services(self) -> Services:
        return Services(self.rlmm, self.rsm, self.retry_for_s)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of every sweep."""
    add = parser.add_argument
    add("--rsm", required=True, metavar="HOST:PORT")
    add("--rlmm", required=True, metavar="HOST:PORT")
    add("--topic", dest="topics", action="append", default=[], help="only this one; repeatable")
    add("--apply", action="store_true", help="delete; without it this is a dry run")
    add("--max-segments", type=int, default=MAX_SEGMENTS)
    add("--max-bytes", type=int)
    add("--batch-size", type=int, default=BATCH_SIZE)
    add("--retry-for-s", type=float, default=RETRY_FOR_S)
    add("--master", default=MASTER, help="of no effect under spark-submit")
    add("--driver-memory", default=DRIVER_MEMORY, help="of no effect under spark-submit")
    add("--work-dir", type=Path, help="which every executor must see; kept")
    add("--report", type=Path, help="by default standard output")


def options_of(arguments: argparse.Namespace) -> SweepOptions:
    """What `add_options` had parsed.

    Raises:
        InvalidRequestError: a value out of bounds; names the option.
    """
    return SweepOptions(
        rsm=arguments.rsm,
        rlmm=arguments.rlmm,
        topics=tuple(arguments.topics),
        apply=arguments.apply,
        max_segments=arguments.max_segments,
        max_bytes=arguments.max_bytes,
        batch_size=arguments.batch_size,
        retry_for_s=arguments.retry_for_s,
        master=arguments.master,
        driver_memory=arguments.driver_memory,
        work_dir=arguments.work_dir,
        report=arguments.report,
    )
