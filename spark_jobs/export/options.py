"""Declare the options of an export and their defaults."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.api.calls import MAX_TEXT_LENGTH
from services.api.holds import MAX_EXPORT_LEASE_MS
from services.api.validation import require, require_between
from spark_jobs.options import JOB_OPTIONS, add_options, duration_ms, properties_of
from spark_jobs.records.options import COMMITTED, UNCOMMITTED, records_options
from spark_jobs.spark_session import SparkSettings

JOB = "export"
MAX_OFFSETS = 1_000_000
LEASE_MS = 2 * 24 * 60 * 60 * 1000
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_OURS = (
    ("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension"),
    ("spark.sql.catalog.spark_catalog", _CATALOG),
)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export, named as on the command line.

    Attributes:
        source: the options of `sediment-records` that the command line gives.
        table: path or URI of the table.
        max_offsets: most offsets of a partition in one commit of the table.
        skip_lost: go on behind offsets that were deleted before they were exported.
        name: of the export, under which RLMM stores its positions.
        lease_ms: so long after each commit retention does not pass the position; 0: it may.
        report: file for the report, JSON; None for standard output.
    """

    source: Mapping[str, str]
    table: str
    max_offsets: int
    skip_lost: bool
    name: str
    lease_ms: int
    spark: SparkSettings
    report: Path | None

    def __post_init__(self) -> None:
        require(self.max_offsets >= 1, "--max-offsets", "must be positive")
        usable = bool(self.table) and "`" not in self.table
        require(usable, "--table", f"must be a path or a URI, is {self.table!r}")
        longest = MAX_TEXT_LENGTH
        require(1 <= len(self.name) <= longest, "--name", f"must be 1 to {longest} characters")
        require_between(self.lease_ms, "--lease", 0, MAX_EXPORT_LEASE_MS)
        if self.report is not None:
            writable = self.report.parent.is_dir() and not self.report.is_dir()
            require(writable, "--report", f"{self.report} must be a file in an existing directory")
        records_options(self.source)


def parse_args(argv: Sequence[str]) -> ExportOptions:
    """Parse a command line.

    Raises:
        InvalidRequestError: a value is out of bounds; names the option.
    """
    parser = argparse.ArgumentParser(prog=JOB, description=__doc__)
    add = parser.add_argument
    add("--topic", dest="topics", action="append", required=True, help="may be repeated")
    add("--table", required=True, help="path or URI of a Delta table; made if there is none")
    add("--isolation", choices=[COMMITTED, UNCOMMITTED], default=COMMITTED)
    add("--max-offsets", type=int, default=MAX_OFFSETS, help="of a partition in one commit")
    add("--skip-lost", action="store_true", help="go on behind offsets that are gone")
    add("--name", help="of the export, in RLMM; default: the table")
    lease_help = "retention waits so long; 0: not at all"
    add("--lease", dest="lease_ms", type=duration_ms, default=LEASE_MS, help=lease_help)
    add_options(parser, [name for name in JOB_OPTIONS if name != "work_dir"])
    parsed = parser.parse_args(argv)
    spark = SparkSettings(
        parsed.master, parsed.driver_memory, properties_of(parsed.conf or ()), defaults=_OURS
    )
    return ExportOptions(
        source=source_options(parsed),
        table=parsed.table,
        max_offsets=parsed.max_offsets,
        skip_lost=parsed.skip_lost,
        name=parsed.name or parsed.table,
        lease_ms=parsed.lease_ms,
        spark=spark,
        report=parsed.report,
    )


def source_options(parsed: argparse.Namespace) -> dict[str, str]:
    """Return the options of the records source that the arguments mean."""
    given = {
        "rsm": parsed.rsm,
        "rlmm": parsed.rlmm,
        "subscribe": ",".join(parsed.topics),
        "kafka.isolation.level": parsed.isolation,
        "retryForS": str(parsed.retry_for_s),
        "plaintext": str(parsed.plaintext).lower(),
        "tlsCa": parsed.tls_ca,
        "tlsCertificate": parsed.tls_certificate,
        "tlsKey": parsed.tls_key,
        "tokenFile": parsed.token_file,
    }
    return {name: str(value) for name, value in given.items() if value is not None}
