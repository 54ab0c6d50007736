"""Probe the capabilities of a store with objects of the probe's own."""

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.rsm.backends.protocol import Part, Upload
from services.rsm.locations import Location

PROBE_NAME = ".probe-"
"""Beginning of the names of probe objects, which have no owner."""

_log = logging.getLogger(__name__)


class Capability(StrEnum):
    """A capability of a store."""

    READ_AFTER_WRITE = "read_after_write"
    LISTING = "listing"
    RANGES = "ranges"
    RANGE_PAST_THE_END = "range_past_the_end"
    MULTIPART = "multipart"
    UPLOAD_LISTING = "upload_listing"
    MULTI_DELETE = "multi_delete"
    IF_NONE_MATCH = "if_none_match"
    CHECKSUMS = "checksums"
    ETAGS = "etags"


WITHOUT = {
    Capability.RANGE_PAST_THE_END: "a truncated object is detected only when it is read",
    Capability.IF_NONE_MATCH: "if two copies of one segment run concurrently, the last one wins",
    Capability.CHECKSUMS: "corruption during an upload is detected only on a read",
    Capability.ETAGS: "an object cannot be distinguished from a later one under its key",
}
"""Consequences for each capability that a store may lack."""

REQUIRED = frozenset(Capability) - WITHOUT.keys()
"""Capabilities without which RSM cannot store, read or delete segments.

Without the two listings a failed copy could never be cleaned up: no metadata names what it left.
"""


class Outcome(StrEnum):
    """The result of one step of a probe."""

    OK = "ok"
    MISSING = "missing"
    """The store refuses the request, or ignores a part of it."""
    WRONG = "wrong"
    """The store does something else."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one step; `detail` describes the fault, empty if there is none."""

    capability: Capability
    outcome: Outcome
    took_ms: float
    detail: str

    def __str__(self) -> str:
        return f"{self.capability} is {self.outcome} ({self.detail})"


class RuleLevel(StrEnum):
    """How bad for the tier is what a store does by itself."""

    OK = "OK"
    UNKNOWN = "UNKNOWN"
    """The store does not say, or refuses to."""
    WARNING = "WARNING"
    CRITICAL = "CRITICAL"
    """It deletes what the tier counts on. RSM serves nevertheless: readers still find the rest."""


class StoreRule(NamedTuple):
    """What a store does by itself with objects of RSM, in words."""

    level: RuleLevel
    text: str


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The results of all steps; RSM cannot use a store that lacks a `required` capability."""

    location: Location
    findings: tuple[Finding, ...]
    required: frozenset[Capability]
    rules: tuple[StoreRule, ...] = ()

    @property
    def refused(self) -> list[Finding]:
        """Return the findings that keep RSM from using the store."""
        return [f for f in self._faults() if f.capability in self.required]

    @property
    def degraded(self) -> list[Finding]:
        """Return the findings that RSM works around."""
        return [f for f in self._faults() if f.capability not in self.required]

    def _faults(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.outcome is not Outcome.OK]

    def as_json(self) -> dict[str, Any]:
        return {
            "location_id": self.location.location_id,
            "place": self.location.place,
            "usable": not self.refused,
            "capabilities": {
                finding.capability.value: {
                    "outcome": finding.outcome.value,
                    "took_ms": round(finding.took_ms, 1),
                    "required": finding.capability in self.required,
                    "detail": finding.detail,
                }
                for finding in self.findings
            },
            "rules": [rule._asdict() for rule in self.rules],
        }


Step = Callable[[], None]
"""Tries one capability.

Raises RemoteStorageError if it is missing, CorruptSegmentError or RemoteResourceNotFoundError if
the store does something else, RetriableRemoteStorageError if nothing is known.
"""

# The smallest part that S3 stores accept, except for the last.
_PART_BYTES = 5 * 1024 * 1024
_LAST_PART = b"the last part"
_WRITTEN = ("whole", "parts", "unfinished", "deleted", "scratch")


class StoreProbe:
    """Finds out which capabilities a store has, by the requests that RSM itself makes.

    As it is, it probes a file system. A hard link makes an object there that must be the only one:
    without it no copy would ever count.
    """

    required = REQUIRED | {Capability.IF_NONE_MATCH}

    def __init__(self, location: Location) -> None:
        self._location = location
        self._backend = location.backend
        # Of one run.
        self._stem = ""

    def run(self) -> ProbeReport:
        """Try every capability, and delete the objects written even if a step fails.

        Raises:
            RetriableRemoteStorageError: the store cannot be reached, throttles or fails
                temporarily: nothing is known of it.
        """
        self._stem = f"{self._location.prefix}{PROBE_NAME}{secrets.token_hex(8)}."
        try:
            findings = tuple(_finding(name, step) for name, step in self.steps().items())
        finally:
            for name in _WRITTEN:
                self.remove(self.key(name))
        return ProbeReport(self._location, findings, self.required)

    def steps(self) -> dict[Capability, Step]:
        """Return the steps in their order; the first one writes the object "whole"."""
        return {
            Capability.READ_AFTER_WRITE: self._read_after_write,
            Capability.LISTING: self._listing,
            Capability.RANGES: self._ranges,
            Capability.MULTIPART: self._multipart,
            Capability.UPLOAD_LISTING: self._upload_listing,
            Capability.MULTI_DELETE: self._multi_delete,
            Capability.IF_NONE_MATCH: self._if_none_match,
        }

    def key(self, name: str) -> str:
        """Return the key of an object of this run; all but the names in _WRITTEN stay unwritten."""
        return f"{self._stem}{name}"

    @property
    def content(self) -> bytes:
        """Return bytes that differ from run to run, so that no old copy passes for them."""
        return self._stem.encode("ascii")[-64:]

    def remove(self, key: str) -> None:
        """Delete an object if it exists; log a failure."""
        for error in self._backend.delete([key]).values():
            _log.warning("%s cannot be deleted and stays in the store: %s", key, error)

    @contextmanager
    def _upload(self, name: str) -> Iterator[Upload]:
        """Begin an upload, and abort it afterwards; no effect on a completed one."""
        upload = self._backend.begin_upload(self.key(name))
        try:
            yield upload
        finally:
            self._backend.abort_upload(upload)

    def _read_after_write(self) -> None:
        self._backend.put(self.key("whole"), self.content)
        _require_equal(self._backend.get(self.key("whole")), self.content, "what was written")

    def _listing(self) -> None:
        listed = [stored.key for stored in self._backend.list_objects(self._stem)]
        if listed != [self.key("whole")]:
            raise CorruptSegmentError(f"one object was written, {len(listed)} listed")

    def _ranges(self) -> None:
        actual = b"".join(self._backend.fetch(self.key("whole"), 3, 9))
        _require_equal(actual, self.content[3:10], "bytes 3 to 9")

    def _multipart(self) -> None:
        """Upload two parts, and read a range across their boundary."""
        first = self.content[-1:] * _PART_BYTES
        with self._upload("parts") as upload:
            parts = [
                self._backend.upload_part(upload, Part(1, 0, memoryview(first))),
                self._backend.upload_part(upload, Part(2, _PART_BYTES, memoryview(_LAST_PART))),
            ]
            self._backend.complete_upload(upload, parts)
        end = _PART_BYTES + len(_LAST_PART) - 1
        actual = b"".join(self._backend.fetch(upload.key, _PART_BYTES - 3, end))
        _require_equal(actual, first[:3] + _LAST_PART, "bytes on both sides of two parts")

    def _upload_listing(self) -> None:
        """List uploads by the prefix of a segment, as deletes of unfinished copies do."""
        with self._upload("unfinished") as upload:
            if upload not in list(self._backend.list_uploads(self._stem)):
                raise RemoteStorageError("an unfinished upload was not listed")
        if upload in list(self._backend.list_uploads(self._stem)):
            raise CorruptSegmentError("an upload was listed after it was ended")

    def _multi_delete(self) -> None:
        """Delete an object and a key without one, in one request."""
        self._backend.put(self.key("deleted"), self.content)
        failures = self._backend.delete([self.key("deleted"), self.key("never")])
        for error in failures.values():
            raise error
        try:
            self._backend.get(self.key("deleted"))
        except RemoteResourceNotFoundError:
            return
        raise CorruptSegmentError("a deleted object is still there")

    def _if_none_match(self) -> None:
        if self._backend.put_if_absent(self.key("whole"), b"another"):
            raise RemoteStorageError("an object was overwritten")


def _finding(capability: Capability, step: Step) -> Finding:
    began = time.perf_counter()
    outcome, detail = Outcome.OK, ""
    try:
        step()
    except RetriableRemoteStorageError:
        raise
    except (RemoteResourceNotFoundError, CorruptSegmentError) as e:
        outcome, detail = Outcome.WRONG, str(e)
    except RemoteStorageError as e:
        outcome, detail = Outcome.MISSING, str(e)
    return Finding(capability, outcome, (time.perf_counter() - began) * 1000, detail)


def _require_equal(actual: bytes, expected: bytes, what: str) -> None:
    if actual != expected:
        detail = f"{what}: {len(actual)} bytes came that are not the {len(expected)} expected"
        raise CorruptSegmentError(detail)
