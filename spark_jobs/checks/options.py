"""Parse the options of checks; imports nothing of Spark.

A value that is out of bounds raises InvalidRequestError, which names the option.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from services.api.operations import MAX_PARTS
from services.api.segment_objects import CURRENT_LOCATION, require_location_id
from services.api.validation import require
from services.common.quantities import SIZE_BYTES
from services.workflows.reconcile import DEFAULT_GRACE_MS
from services.workflows.scrub import DEFAULT_RATE_BYTES_PER_S, parse_part
from spark_jobs.options import (
    JOB_OPTIONS,
    EngineName,
    SweepOptions,
    add_options,
    duration_ms,
    options_of,
    typed,
)

MAX_INVENTORY_AGE_MS = 3 * 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Inventory:
    """A list of a bucket's objects, made by the store.

    Attributes:
        path: of S3's manifest.json, or of files as CSV, Parquet or ORC, as every executor sees it.
        bucket: the name of the location's bucket, which the file must name.
        max_age_ms: an older one is refused.
    """

    path: str
    bucket: str
    max_age_ms: int = MAX_INVENTORY_AGE_MS

    def __post_init__(self) -> None:
        require(self.max_age_ms >= 1, "--max-inventory-age", "must be at least 1")


@dataclass(frozen=True, slots=True)
class ReconcileConfig:
    """Options of the job `reconcile`.

    Attributes:
        delete, grace_ms, locations: as in ReconciliationPlan.
        inventory: to be read instead of a listing; None for a listing.
    """

    options: SweepOptions
    delete: bool = False
    grace_ms: int = DEFAULT_GRACE_MS
    locations: tuple[int, ...] = (CURRENT_LOCATION,)
    inventory: Inventory | None = None

    def __post_init__(self) -> None:
        _require_locations(self.locations)
        has_one = self.inventory is None or len(self.locations) == 1
        require(has_one, "--inventory", "is of one --location, give one")

    @property
    def may_speculate(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class ScrubConfig:
    """Options of the job `scrub`.

    Attributes:
        bytes_per_s: read at most so many, by all tasks together; None for no limit.
        part, parts, locations: as in ScrubPlan.
    """

    options: SweepOptions
    bytes_per_s: float | None = DEFAULT_RATE_BYTES_PER_S
    part: int = 1
    parts: int = 1
    locations: tuple[int, ...] = (CURRENT_LOCATION,)

    def __post_init__(self) -> None:
        _require_locations(self.locations)
        require(1 <= self.part <= self.parts <= MAX_PARTS, "--part", "must be I/N, I of 1 to N")

    @property
    def may_speculate(self) -> bool:
        return self.bytes_per_s is None


@dataclass(frozen=True, slots=True)
class RebuildConfig:
    """Options of the job `rebuild`.

    Attributes:
        apply, locations: as in RebuildPlan.
    """

    options: SweepOptions
    apply: bool = False
    locations: tuple[int, ...] = (CURRENT_LOCATION,)

    def __post_init__(self) -> None:
        _require_locations(self.locations)

    @property
    def may_speculate(self) -> bool:
        return not self.apply


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The end of a check whose document is written."""

    exit_code: int


def parse_reconcile(argv: Sequence[str]) -> ReconcileConfig:
    parser = _parser("reconcile", "Compare the object store with the metadata.")
    add = parser.add_argument
    add("--delete", action="store_true", help="delete orphans that an earlier run saw")
    add(
        "--grace",
        dest="grace_ms",
        type=duration_ms,
        default=DEFAULT_GRACE_MS,
        help="ignore younger objects",
    )
    instead = "S3's manifest.json, or CSV, Parquet or ORC; instead of a listing"
    add("--inventory", metavar="FILE", help=instead)
    add("--bucket", default="", help="the bucket that the inventory must be of")
    older = "refuse an older inventory; default: three days"
    add(
        "--max-inventory-age",
        dest="max_inventory_age_ms",
        type=duration_ms,
        default=MAX_INVENTORY_AGE_MS,
        help=older,
    )
    arguments = parser.parse_args(argv)
    inventory = None
    if arguments.inventory is not None:
        require(arguments.bucket != "", "--bucket", "name the location's bucket with --inventory")
        max_age_ms = arguments.max_inventory_age_ms
        inventory = Inventory(arguments.inventory, arguments.bucket, max_age_ms)
    return ReconcileConfig(
        options_of(arguments, EngineName.SPARK),
        arguments.delete,
        arguments.grace_ms,
        _locations(arguments),
        inventory,
    )


def parse_scrub(argv: Sequence[str]) -> ScrubConfig:
    parser = _parser("scrub", "Read stored segments and verify their checksums.", "topics")
    add = parser.add_argument
    rate = typed(SIZE_BYTES)
    rate_help = "of all tasks together, in a second; 0: no limit"
    add("--rate", dest="bytes_per_s", type=rate, default=DEFAULT_RATE_BYTES_PER_S, help=rate_help)
    add(
        "--part", default="1/1", metavar="I/N", help="only part I of N; a segment stays in its part"
    )
    arguments = parser.parse_args(argv)
    part, parts = parse_part(arguments.part)
    return ScrubConfig(
        options_of(arguments, EngineName.SPARK),
        arguments.bytes_per_s or None,
        part,
        parts,
        _locations(arguments),
    )


def parse_rebuild(argv: Sequence[str]) -> RebuildConfig:
    parser = _parser("rebuild", "Rebuild the metadata from the manifests in the bucket.")
    apply_help = "freeze all deletions and import what the metadata lacks"
    parser.add_argument("--apply", action="store_true", help=apply_help)
    arguments = parser.parse_args(argv)
    options = options_of(arguments, EngineName.SPARK)
    return RebuildConfig(options, arguments.apply, _locations(arguments))


def _parser(name: str, description: str, *more: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name, description=description)
    add_options(parser, (*more, *JOB_OPTIONS))
    parser.add_argument(
        "--location",
        dest="locations",
        action="append",
        type=int,
        metavar="N",
        help="number of a location; may be repeated; default: that of new segments",
    )
    return parser


def _locations(arguments: argparse.Namespace) -> tuple[int, ...]:
    return tuple(arguments.locations or [CURRENT_LOCATION])


def _require_locations(locations: Sequence[int]) -> None:
    require(len(set(locations)) == len(locations), "--location", "names a location twice")
    for location_id in locations:
        require_location_id(location_id, "--location")
