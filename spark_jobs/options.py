"""Declare the options of every sweep and their defaults; imports nothing heavy."""

import argparse
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote, urlsplit

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
SEGMENTS_PER_S = 1_000.0
WAVE_SEGMENTS = 20_000
LOCAL_SEGMENTS = 3_000_000
"""The in-process engine takes tiers of up to so many segments, unless it is chosen by name."""

RETRY_FOR_S = 30.0
_URI = re.compile(r"[a-z][a-z0-9+.-]*:/")
REMOVAL_GRACE_MS = 3_600_000


class EngineName(StrEnum):
    """What runs the stages; AUTO: this process, and Spark for more than LOCAL_SEGMENTS segments."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Options of a sweep, named as on the command line.

    Attributes:
        rsm, rlmm: HOST:PORT.
        topics: names of the topics to sweep; empty for all.
        apply: delete; otherwise a dry run, which changes nothing.
        max_segments, max_bytes: refuse a plan with more new segments or bytes than this; None for
            no limit.
        max_topic_percent: refuse a topic of which the plan names a larger share of segments or
            bytes; None for no limit.
        segments_per_s: mark, and delete, at most so many, by all tasks together; None for no limit.
        wave_segments: mark and delete so many before settings are looked at again.
        batch_size: segments per call to RSM.
        retry_for_s: how long a task retries while a service is down.
        engine: which engine runs the stages.
        master, driver_memory, conf: Spark's master, memory of the driver and properties; what is
            not set here is left to Spark's own files, then to `spark_jobs/spark_session.py`.
        work_dir: directory for plan and outcomes, a path or a URI that Hadoop knows (file:, s3a:,
            hdfs:); every executor must see it. None for a temporary directory on this machine,
            deleted at the end.
        report: file for the report, JSON; None for no file.
        security: how to connect to the services.
    """

    rsm: str
    rlmm: str
    topics: tuple[str, ...] = ()
    apply: bool = False
    max_segments: int = MAX_SEGMENTS
    max_bytes: int | None = None
    max_topic_percent: float | None = None
    segments_per_s: float | None = SEGMENTS_PER_S
    wave_segments: int = WAVE_SEGMENTS
    batch_size: int = BATCH_SIZE
    retry_for_s: float = RETRY_FOR_S
    master: str | None = None
    driver_memory: str | None = None
    conf: tuple[tuple[str, str], ...] = ()
    engine: EngineName = EngineName.AUTO
    work_dir: str | None = None
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
        if self.max_topic_percent is not None:
            within = 0 <= self.max_topic_percent <= 100
            require(within, "--max-topic-percent", "must be 0 to 100")
        if self.segments_per_s is not None:
            require(self.segments_per_s > 0, "--segments-per-s", "must be positive, or 0: no limit")
        require(self.wave_segments >= 1, "--wave-segments", "must be positive")
        if self.local_work_dir is not None:
            is_file = self.local_work_dir.exists() and not self.local_work_dir.is_dir()
            require(not is_file, "--work-dir", f"{self.local_work_dir} is not a directory")
        elif self.work_dir is not None:
            is_spark = self.engine is not EngineName.LOCAL
            require(is_spark, "--work-dir", f"{self.work_dir} needs --engine spark")

    @property
    def local_work_dir(self) -> Path | None:
        """Return the work directory as a path; None if there is none, or it is elsewhere."""
        if self.work_dir is None:
            return None
        if _URI.match(self.work_dir) is None:
            return Path(self.work_dir)
        parts = urlsplit(self.work_dir)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    @property
    def wants_spark(self) -> bool:
        """Return whether --engine auto means Spark, whatever the size of the tier."""
        is_remote = self.work_dir is not None and self.local_work_dir is None
        return bool(self.master or self.driver_memory or self.conf or is_remote)

    @property
    def services(self) -> Services:
        return Services(self.rlmm, self.rsm, self.retry_for_s, self.security)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every sweep to a parser."""
    add_job_options(parser)
    add = parser.add_argument
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
    add("--max-topic-percent", type=float)
    add("--segments-per-s", type=float, default=SEGMENTS_PER_S, help="0: no limit")
    add("--wave-segments", type=int, default=WAVE_SEGMENTS)
    add("--batch-size", type=int, default=BATCH_SIZE)
    add("--engine", type=EngineName, choices=list(EngineName), default=EngineName.AUTO)


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every job: addresses, Spark's, the report, TLS."""
    add = parser.add_argument
    add("--rsm", required=True, metavar="HOST:PORT")
    add("--rlmm", required=True, metavar="HOST:PORT")
    add("--retry-for-s", type=float, default=RETRY_FOR_S)
    add("--master", help="Spark's; ignored under spark-submit")
    add("--driver-memory", help="of Spark's driver; ignored under spark-submit")
    add("--conf", action="append", default=[], metavar="KEY=VALUE", help="a property of Spark")
    add("--work-dir", help="directory or URI that every executor must see; kept")
    add("--report", type=Path, help="file for the report; default: standard output")
    add_security_options(parser)


def add_security_options(parser: argparse.ArgumentParser) -> None:
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
    return replace(
        job_options_of(arguments, arguments.engine),
        topics=tuple(arguments.topics),
        apply=arguments.apply,
        max_segments=arguments.max_segments,
        max_bytes=arguments.max_bytes,
        max_topic_percent=arguments.max_topic_percent,
        segments_per_s=arguments.segments_per_s or None,
        wave_segments=arguments.wave_segments,
        batch_size=arguments.batch_size,
    )


def job_options_of(arguments: argparse.Namespace, engine: EngineName) -> SweepOptions:
    """Build the options that `add_job_options` parsed; the others have their defaults.

    Raises:
        InvalidRequestError: a value is out of bounds; names the option.
    """
    return SweepOptions(
        rsm=arguments.rsm,
        rlmm=arguments.rlmm,
        retry_for_s=arguments.retry_for_s,
        engine=engine,
        master=arguments.master,
        driver_memory=arguments.driver_memory,
        conf=properties_of(arguments.conf),
        work_dir=arguments.work_dir,
        report=arguments.report,
        security=SecurityOptions(
            ClientSecurity(
                arguments.tls_ca, arguments.tls_certificate, arguments.tls_key, arguments.token_file
            ),
            arguments.plaintext,
        ),
    )


def properties_of(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Split each KEY=VALUE of --conf.

    Raises:
        InvalidRequestError: one has no `=`, or is not a property of Spark.
    """
    made = []
    for text in texts:
        key, equals, value = text.partition("=")
        is_property = bool(equals) and key.startswith("spark.")
        require(is_property, "--conf", f"must be spark.KEY=VALUE, is {text!r}")
        made.append((key, value))
    return tuple(made)
