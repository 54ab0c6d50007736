"""Declare the options of every sweep and their defaults; imports nothing heavy."""

import argparse
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin
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
from services.common.quantities import DURATION_MS, DURATION_S, SIZE_BYTES, Quantity
from spark_jobs.connections import Services

MAX_SEGMENTS = 10_000
LOCAL_SEGMENTS = 3_000_000
"""The in-process engine sweeps tiers of up to so many segments, unless it is chosen by name."""

RETRY_FOR_S = 30.0
GRACE_MS = 3_600_000
_URI = re.compile(r"[a-z][a-z0-9+.-]*:/")


class EngineName(StrEnum):
    """What runs the stages; AUTO: this process, and Spark for more than LOCAL_SEGMENTS segments."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


def _option(
    default: Any,
    help: str,
    flag: str = "",
    *,
    metavar: str | None = None,
    quantity: Quantity | None = None,
) -> Any:
    """Declare an option of the command lines; its flag is the field's name unless one is given."""
    said = {"help": help, "flag": flag, "metavar": metavar, "quantity": quantity}
    return field(default=default, metadata=said)


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Options of a sweep, for `sediment sweep` and for spark-submit.

    What is not set of `master`, `driver_memory` and `conf` is left to Spark's own files, then to
    `spark_jobs/spark_session.py`.

    Attributes:
        rsm, rlmm: HOST:PORT.
        max_segments, max_bytes, max_topic_percent, segments_per_s: None for no limit.
        conf: Spark's properties and their values.
        security: how to connect to the services.
    """

    rsm: str
    rlmm: str
    topics: tuple[str, ...] = _option((), "Only topics with this name; may be repeated.", "--topic")
    apply: bool = _option(False, "Delete. Without it nothing is changed.")
    max_segments: int = _option(MAX_SEGMENTS, "Refuse a plan with more new segments than this.")
    max_bytes: int | None = _option(
        None,
        "Refuse a plan with more bytes in new segments than this.",
        "--max-size",
        quantity=SIZE_BYTES,
    )
    max_topic_percent: float | None = _option(
        None, "Refuse a topic of which the plan names a larger share of segments or bytes."
    )
    segments_per_s: float | None = _option(
        1_000.0, "Mark, and delete, at most so many segments a second; 0: no limit."
    )
    wave_segments: int = _option(
        2_000, "Segments to mark and delete before settings are read again."
    )
    batch_size: int = _option(500, "Segments per call to RSM.")
    retry_for_s: float = _option(
        RETRY_FOR_S,
        "How long a task retries while a service is down.",
        "--retry-for",
        quantity=DURATION_S,
    )
    engine: EngineName = _option(
        EngineName.AUTO,
        "What does the work: this process, or Spark. auto: this process up to 3,000,000 "
        "segments, unless an option of Spark is given.",
    )
    master: str | None = _option(
        None,
        "Spark's master URL; executors need this package installed. Default: that of "
        "spark-defaults.conf, or local[*]. Ignored under spark-submit.",
    )
    driver_memory: str | None = _option(
        None,
        "Memory of Spark's driver, which does all the work with a local master. Default: that "
        "of spark-defaults.conf, or 1g. Ignored under spark-submit.",
    )
    conf: tuple[tuple[str, str], ...] = _option(
        (), "A property of Spark; may be repeated.", metavar="KEY=VALUE"
    )
    work_dir: str | None = _option(
        None,
        "Directory for plan and outcomes, in a folder per plan: a path, or a URI that Spark "
        "knows, such as s3a://BUCKET/PREFIX. All executors must see it. Default: a temporary "
        "directory.",
    )
    report: Path | None = _option(None, "Write the report to this file as JSON.")
    security: SecurityOptions = NOT_CHOSEN

    def __post_init__(self) -> None:
        require(self.max_segments >= 0, "--max-segments", "must not be negative")
        fits = 1 <= self.batch_size <= MAX_DELETE_BATCH
        require(fits, "--batch-size", f"must be 1 to {MAX_DELETE_BATCH}, is {self.batch_size}")
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
    def needs_spark(self) -> bool:
        """Return whether --engine auto means Spark, whatever the size of the tier."""
        is_remote = self.work_dir is not None and self.local_work_dir is None
        return bool(self.master or self.driver_memory or self.conf or is_remote)

    @property
    def services(self) -> Services:
        return Services(self.rlmm, self.rsm, self.retry_for_s, self.security)


@dataclass(frozen=True, slots=True)
class SweepConfig:
    """Options of a sweep, and its grace period.

    Attributes:
        grace_ms: retention treats a copy as in progress this long after it began; a removal skips
            partitions that were marked less than this ago, so that copies in progress can end.
    """

    options: SweepOptions
    grace_ms: int = GRACE_MS

    @property
    def may_speculate(self) -> bool:
        return self.options.segments_per_s is None


OPTIONS = {each.name: each for each in fields(SweepOptions) if each.metadata}
"""Fields of SweepOptions that command lines have, but the addresses."""

JOB_OPTIONS = ("retry_for_s", "master", "driver_memory", "conf", "work_dir", "report")
"""Those that jobs have which are no sweeps."""


def flag_of(option: "Field[Any]") -> str:
    return str(option.metadata["flag"]) or f"--{option.name.replace('_', '-')}"


def kind_of(option: "Field[Any]") -> Any:
    """Return the type of an option's value, of each if it may be repeated; bool for a switch."""
    declared: Any = option.type
    if get_origin(declared) is tuple:
        return str
    return next((kind for kind in get_args(declared) if kind is not NoneType), declared)


def add_options(parser: argparse.ArgumentParser, names: Iterable[str] = OPTIONS) -> None:
    """Add the addresses, options, and those of TLS to a parser."""
    for address in ("--rsm", "--rlmm"):
        parser.add_argument(address, required=True, metavar="HOST:PORT")
    for option in (OPTIONS[name] for name in names):
        kind, more = kind_of(option), dict[str, Any]()
        if kind is bool:
            more = {"action": "store_true"}
        else:
            quantity = option.metadata["quantity"]
            read = kind if quantity is None else typed(quantity)
            more = {"type": read, "metavar": option.metadata["metavar"]}
            if isinstance(option.default, tuple):
                more["action"] = "append"
        parser.add_argument(
            flag_of(option),
            dest=option.name,
            default=option.default or None if "action" in more else option.default,
            help=option.metadata["help"],
            **more,
        )
    add_security_options(parser)


def typed(quantity: Quantity) -> Callable[[str], float]:
    """Return what reads a duration or a size for a parser, with our rule in its error."""

    def read(text: str) -> float:
        try:
            return quantity(text)
        except ValueError as e:
            raise argparse.ArgumentTypeError(str(e)) from e

    return read


duration_ms = typed(DURATION_MS)


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


def parse_sweep(job: str, grace_flag: str, argv: Sequence[str]) -> SweepConfig:
    """Parse the command line of a sweep.

    Raises:
        InvalidRequestError: a value is out of bounds; names the option.
    """
    parser = argparse.ArgumentParser(prog=job)
    add_options(parser)
    parser.add_argument(grace_flag, dest="grace_ms", type=duration_ms, default=GRACE_MS)
    arguments = parser.parse_args(argv)
    return SweepConfig(options_of(arguments), arguments.grace_ms)


def options_of(arguments: argparse.Namespace, engine: EngineName | None = None) -> SweepOptions:
    """Build the options that `add_options` parsed.

    Args:
        engine: of a job without this option.

    Raises:
        InvalidRequestError: a value is out of bounds; names the option.
    """
    given = vars(arguments)
    return sweep_options({**given, "engine": engine or given["engine"]}, security_of(arguments))


def security_of(arguments: argparse.Namespace) -> SecurityOptions:
    """Build what `add_security_options` parsed."""
    files = (arguments.tls_ca, arguments.tls_certificate, arguments.tls_key, arguments.token_file)
    return SecurityOptions(ClientSecurity(*files), arguments.plaintext)


def sweep_options(given: Mapping[str, Any], security: SecurityOptions) -> SweepOptions:
    """Build options from values by name, as a command line gives them; defaults for the others.

    Raises:
        InvalidRequestError: a value is out of bounds; names the option.
    """
    values = {name: given[name] for name in ("rsm", "rlmm", *OPTIONS) if name in given}
    values["topics"] = tuple(given.get("topics") or ())
    values["conf"] = properties_of(given.get("conf") or ())
    if "segments_per_s" in values:
        values["segments_per_s"] = values["segments_per_s"] or None
    return SweepOptions(**values, security=security)


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
