"""Declare the options of an export and their defaults."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.api.errors import InvalidRequestError
from services.api.segments import require_export
from services.api.validation import require
from spark_jobs.options import JOB_OPTIONS, add_options, properties_of
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
        name: of the export, under which RLMM keeps its positions.
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
        try:
            require_export(self.name, 0, self.lease_ms)
        except InvalidRequestError as e:
            raise InvalidRequestError(f"--{str(e).replace('_', '-', 1)}") from e
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
    add("--lease-ms", type=int, default=LEASE_MS, help="retention waits so long; 0: not at all")
    add_options(parser, [name for name in JOB_OPTIONS if name != "work_dir"])
    found = parser.parse_args(argv)
    spark = SparkSettings(
        found.master, found.driver_memory, properties_of(found.conf or ()), defaults=_OURS
    )
    return ExportOptions(
        source=source_options(found),
        table=found.table,
        max_offsets=found.max_offsets,
        skip_lost=found.skip_lost,
        name=found.name or found.table,
        lease_ms=found.lease_ms,
        spark=spark,
        report=found.report,
    )


def source_options(found: argparse.Namespace) -> dict[str, str]:
    """Return the options of the records source that the arguments mean."""
    given = {
        "rsm": found.rsm,
        "rlmm": found.rlmm,
        "topic": ",".join(found.topics),
        "isolation": found.isolation,
        "retryForS": str(found.retry_for_s),
        "plaintext": str(found.plaintext).lower(),
        "tlsCa": found.tls_ca,
        "tlsCertificate": found.tls_certificate,
        "tlsKey": found.tls_key,
        "tokenFile": found.token_file,
    }
    return {name: str(value) for name, value in given.items() if value is not None}
