"""Probe the capabilities of a store with objects of the probe's own."""

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.rsm.backends.protocol import Part, StorageBackend, Upload
from services.rsm.locations import Location
from services.rsm.marker import PROBE_NAME


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
    UNSIGNED_PAYLOAD = "unsigned_payload"


REQUIRED = frozenset(
    {
        Capability.READ_AFTER_WRITE,
        # Without it a failed copy could never be cleaned up: no metadata names what it left.
        Capability.LISTING,
        Capability.RANGES,
        Capability.MULTIPART,
        # The same, for the parts that it left.
        Capability.UPLOAD_LISTING,
        Capability.MULTI_DELETE,
    }
)
"""Capabilities without which RSM cannot keep, read or delete segments."""

REQUIRED_OF_FILES = REQUIRED | {Capability.IF_NONE_MATCH}
"""Capabilities that RSM requires of a file system.

A hard link makes an object that must be the only one. Without it no copy would ever count.
"""

WITHOUT = {
    Capability.RANGE_PAST_THE_END: "an object that lost its end is found out later",
    Capability.IF_NONE_MATCH: "of two copies of one segment at the same moment the last one counts",
    Capability.CHECKSUMS: "bytes that change on their way into the store are found when they are "
    "read",
    Capability.ETAGS: "an object cannot be told from a later one under its key",
}
"""Consequences for each capability that a store may lack.

Unsigned payloads are absent: if RSM sends them to a store that refuses them, the store fails
READ_AFTER_WRITE.
"""


class Outcome(StrEnum):
    """The result of one step of a probe."""

    OK = "ok"
    MISSING = "missing"
    """The store refuses the request, or ignores a part of it."""
    WRONG = "wrong"
    """The store does something else."""


class ShortcomingError(Exception):
    """Raised if a store fails a step of a probe; internal to the probe."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


Step = Callable[[], None]
"""Tries one capability; raises ShortcomingError, or an error of the store as a StorageBackend."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one step; `detail` describes the fault, empty if there is none."""

    capability: Capability
    outcome: Outcome
    took_ms: float
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.capability} is {self.outcome} ({self.detail})"


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The results of all steps; RSM cannot use a store that lacks a `required` capability."""

    location_id: int
    place: str
    findings: tuple[Finding, ...]
    required: frozenset[Capability] = REQUIRED

    @property
    def refused(self) -> tuple[Finding, ...]:
        """Return the findings that keep RSM from using the store."""
        return tuple(f for f in self._shortcomings() if f.capability in self.required)

    @property
    def degraded(self) -> tuple[Finding, ...]:
        """Return the findings that RSM works around."""
        degraded = WITHOUT.keys() - self.required
        return tuple(f for f in self._shortcomings() if f.capability in degraded)

    def as_json(self) -> dict[str, Any]:
        return {
            "location_id": self.location_id,
            "place": self.place,
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
        }

    def _shortcomings(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.outcome is not Outcome.OK)


# The smallest part that S3 stores accept, except for the last.
_PART_BYTES = 5 * 1024 * 1024
_LAST_PART = b"the last part"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProbeObjects:
    """The keys of one probe, used by no other."""

    stem: str

    @property
    def whole(self) -> str:
        """Return the key of an object that has `content` from the first step on."""
        return f"{self.stem}.whole"

    @property
    def parts(self) -> str:
        return f"{self.stem}.parts"

    @property
    def unfinished(self) -> str:
        return f"{self.stem}.unfinished"

    @property
    def deleted(self) -> str:
        return f"{self.stem}.deleted"

    @property
    def never(self) -> str:
        """Return a key that is never written."""
        return f"{self.stem}.never"

    @property
    def scratch(self) -> str:
        """Return a key for the steps that one kind of store adds."""
        return f"{self.stem}.scratch"

    @property
    def content(self) -> bytes:
        """Return bytes that differ from probe to probe, so that no old copy passes for them."""
        return self.stem.encode("ascii")[-64:]

    @property
    def written(self) -> Sequence[str]:
        return (self.whole, self.parts, self.unfinished, self.deleted, self.scratch)


@dataclass(frozen=True, slots=True)
class OwnSteps:
    """The steps that one kind of store adds, below the requests of StorageBackend.

    Attributes:
        steps: replace the common steps of the same capability; the others run after the common
            ones.
        remove: deletes one object; raises if it cannot.
    """

    steps: Callable[[ProbeObjects], Mapping[Capability, Step]]
    remove: Callable[[str], None]


class StoreProbe:
    """Finds out which capabilities the store of a location has."""

    def __init__(self, location: Location, own: OwnSteps | None = None) -> None:
        """Prepare a probe of the location; without `own` its store is a file system."""
        self._location = location
        self._own = own
        self._required = REQUIRED if own else REQUIRED_OF_FILES

    def run(self) -> ProbeReport:
        """Try every capability, and delete the objects written even if a step fails.

        Raises:
            RetriableRemoteStorageError: the store cannot be reached, throttles or fails
                temporarily: nothing is known of it.
        """
        stem = f"{self._location.prefix}{PROBE_NAME}{secrets.token_hex(8)}"
        objects = ProbeObjects(stem)
        common = _CommonSteps(self._location.backend, objects)
        own = self._own.steps(objects) if self._own else {}
        try:
            findings = [_finding(name, step) for name, step in {**common.steps(), **own}.items()]
        finally:
            common.end_uploads()
            self._remove(objects)
        return ProbeReport(
            self._location.location_id, self._location.place, tuple(findings), self._required
        )

    def _remove(self, objects: ProbeObjects) -> None:
        for key in objects.written:
            try:
                if self._own:
                    self._own.remove(key)
                else:
                    self._location.backend.delete([key])
            except RemoteStorageError as e:
                _log.warning("%s is left behind: %s", key, e)


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
    except ShortcomingError as e:
        outcome, detail = e.outcome, str(e)
    return Finding(capability, outcome, (time.perf_counter() - began) * 1000, detail)


class _CommonSteps:
    """The steps for every store, by the requests that RSM itself makes."""

    def __init__(self, backend: StorageBackend, objects: ProbeObjects) -> None:
        self._backend = backend
        self._objects = objects
        self._uploads: list[Upload] = []

    def steps(self) -> dict[Capability, Step]:
        return {
            Capability.READ_AFTER_WRITE: self._read_after_write,
            Capability.LISTING: self._listing,
            Capability.RANGES: self._ranges,
            Capability.MULTIPART: self._multipart,
            Capability.UPLOAD_LISTING: self._upload_listing,
            Capability.MULTI_DELETE: self._multi_delete,
            Capability.IF_NONE_MATCH: self._if_none_match,
        }

    def end_uploads(self) -> None:
        for upload in self._uploads:
            try:
                self._backend.abort_upload(upload)
            except RemoteStorageError as e:
                _log.warning("the upload of %s is left behind: %s", upload.key, e)

    def _read_after_write(self) -> None:
        key, content = self._objects.whole, self._objects.content
        self._backend.put(key, content)
        _require_equal(self._backend.get(key), content, "what was written")

    def _listing(self) -> None:
        listed = list(self._backend.list_keys(f"{self._objects.stem}."))
        if listed != [self._objects.whole]:
            raise ShortcomingError(Outcome.WRONG, f"one object was written, {len(listed)} listed")

    def _ranges(self) -> None:
        got = b"".join(self._backend.fetch(self._objects.whole, 3, 9))
        _require_equal(got, self._objects.content[3:10], "bytes 3 to 9")

    def _multipart(self) -> None:
        """Upload two parts, and read a range across their boundary."""
        first = self._objects.content[-1:] * _PART_BYTES
        upload = self._begin(self._objects.parts)
        parts = [
            self._backend.upload_part(upload, Part(1, 0, memoryview(first))),
            self._backend.upload_part(upload, Part(2, _PART_BYTES, memoryview(_LAST_PART))),
        ]
        self._backend.complete_upload(upload, parts)
        self._uploads.remove(upload)
        end = _PART_BYTES + len(_LAST_PART) - 1
        got = b"".join(self._backend.fetch(upload.key, _PART_BYTES - 3, end))
        _require_equal(got, first[:3] + _LAST_PART, "bytes on both sides of two parts")

    def _upload_listing(self) -> None:
        """List uploads by the prefix of a segment, as deletes of unfinished copies do."""
        upload = self._begin(self._objects.unfinished)
        listed = upload in list(self._backend.list_uploads(f"{self._objects.stem}."))
        self._backend.abort_upload(upload)
        self._uploads.remove(upload)
        if not listed:
            raise ShortcomingError(Outcome.MISSING, "an unfinished upload was not listed")
        if upload in list(self._backend.list_uploads(f"{self._objects.stem}.")):
            raise ShortcomingError(Outcome.WRONG, "an upload was listed after it was ended")

    def _multi_delete(self) -> None:
        """Delete an object and a key without one, in one request."""
        self._backend.put(self._objects.deleted, self._objects.content)
        failures = self._backend.delete([self._objects.deleted, self._objects.never])
        for error in failures.values():
            raise error
        try:
            self._backend.get(self._objects.deleted)
        except RemoteResourceNotFoundError:
            return
        raise ShortcomingError(Outcome.WRONG, "a deleted object is still there")

    def _if_none_match(self) -> None:
        if self._backend.put_if_absent(self._objects.whole, b"another"):
            raise ShortcomingError(Outcome.MISSING, "an object was overwritten")

    def _begin(self, key: str) -> Upload:
        upload = self._backend.begin_upload(key)
        self._uploads.append(upload)
        return upload


def _require_equal(got: bytes, wanted: bytes, what: str) -> None:
    if got != wanted:
        detail = f"{what}: {len(got)} bytes came that are not the {len(wanted)} wanted"
        raise ShortcomingError(Outcome.WRONG, detail)
