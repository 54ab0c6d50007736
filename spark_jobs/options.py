"""Declare the options of every sweep and their defaults; imports nothing heavy."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from services.api.remote_storage_manager import MAX_DELETE_BATCH
from services.api.validation import require
from services.common.client_security import (
    CA_VARIABLE,
    CERTIFICATE_VARIABLE,
    KEY_VARIABLE,
    NOT_CHOSEN,
    PLAINTEXT_VARIABLE,
    TOKEN_VARIABLE,
    ClientSecurity,
    SecurityOptions,
)
from spark_jobs.connections import Services

MAX_SEGMENTS = 10_000
BATCH_SIZE = 500
RETRY_FOR_S = 30.0
MASTER = "local[*]"
DRIVER_MEMORY = "1g"
REMOVAL_GRACE_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Options of a sweep, named as on the command line.

    Attributes:
        rsm, rlmm: HOST:PORT.
        topics: names of the topics to sweep; empty for all.
        apply: delete; otherwise a dry run, which changes nothing.
        max_segments, max_bytes: refuse a plan with more new segments or bytes than this; None for
            no limit.
        batch_size: segments per call to RSM.
        retry_for_s: how long a task retries while a service is down.
        master, driver_memory: as in Spark.
        work_dir: directory for plan and outcomes; every executor must see it at this path. None
            for a temporary directory on this machine, deleted at the end.
        report: file for the report, JSON; None for no file.
        security: how to connect to the services.
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
    security: SecurityOptions = NOT_CHOSEN

    def __post_init__(self) -> None:
        require(self.max_segments >= 0, "--max-segments", "must not be negative")
        require((self.max_bytes or 0) >= 0, "--max-bytes", "must not be negative")
        fits = 1 <= self.batch_size <= MAX_DELETE_BATCH
        require(fits, "--batch-size", f"must be 1 to {MAX_DELETE_BATCH}, is {self.batch_size}")
        require(self.retry_for_s >= 0, "--retry-for-s", "must not be negative")
        if self.report is not None:
            writable = self.report.parent.is_dir() and not self.report.is_dir()
            require(writable, "--report", f"{self.report} must be a file in an existing directory")
        if self.work_dir is not None:
            is_file = self.work_dir.exists() and not self.work_dir.is_dir()
            require(not is_file, "--work-dir", f"{self.work_dir} is not a directory")

    @property
    def services(self) -> Services:
        return Services(self.rlmm, self.rsm, self.retry_for_s, self.security)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every sweep to a parser."""
    add = parser.add_argument
    add("--rsm", required=True, metavar="HOST:PORT")
    add("--rlmm", required=True, metavar="HOST:PORT")
    add(
        "--topic",
        dest="topics",
        action="append",
        default=[],
        help="only this topic; may be repeated",
    )
    add("--apply", action="store_true", help="delete; without it, a dry run")
    add("--max-segments", type=int, default=MAX_SEGMENTS)
    add("--max-bytes", type=int)
    add("--batch-size", type=int, default=BATCH_SIZE)
    add("--retry-for-s", type=float, default=RETRY_FOR_S)
    add("--master", default=MASTER, help="ignored under spark-submit")
    add("--driver-memory", default=DRIVER_MEMORY, help="ignored under spark-submit")
    add("--work-dir", type=Path, help="directory that every executor must see; kept")
    add("--report", type=Path, help="file for the report; default: standard output")
    _add_security_options(parser)


def _add_security_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of TLS; every executor must have the files at the same paths."""
    add = parser.add_argument
    chosen = SecurityOptions.from_environment(os.environ)
    files = chosen.files
    add("--tls-ca", type=Path, default=files.ca, help=f"or {CA_VARIABLE}")
    add("--tls-certificate", type=Path, default=files.certificate, help=CERTIFICATE_VARIABLE)
    add("--tls-key", type=Path, default=files.key, help=f"or {KEY_VARIABLE}")
    add("--token-file", type=Path, default=files.token, help=f"or {TOKEN_VARIABLE}")
    add("--plaintext", action="store_true", default=chosen.plaintext, help=PLAINTEXT_VARIABLE)


def options_of(arguments: argparse.Namespace) -> SweepOptions:
    """Build the options that `add_options` parsed.

    Raises:
        InvalidRequestError: a value is out of bounds; names the option.
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
        security=SecurityOptions(
            ClientSecurity(
                arguments.tls_ca, arguments.tls_certificate, arguments.tls_key, arguments.token_file
            ),
            arguments.plaintext,
        ),
    )
