"""Copy to the mirror of a location what it lacks: `sediment copy --mirror`."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from threading import Lock
from time import time_ns
from typing import Literal

from crc32c import crc32c
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.api.errors import RemoteResourceNotFoundError, RemoteStorageError
from services.common.batches import batches
from services.common.quantities import counted
from services.rsm.backends.protocol import Part, StorageBackend, StoredObject
from services.rsm.locations import Location
from services.rsm.marker import MARKER_NAME
from services.rsm.probe import RuleLevel, StoreRule
from services.rsm.segment_objects import STATE_NAME

REPORT_NAME = ".mirror"
LATE_H = 26
"""A run a day, and two hours for it."""

MAX_MS = 10**15
PART_BYTES = 8 * 1024 * 1024
_BATCH = 64
_MANIFEST = ".manifest"
_MAX_REASONS = 100


class MirrorReport(BaseModel):
    """What the last run left, as the object `.mirror` of the mirror says.

    Attributes:
        segments_lacking: that the mirror lacked at the end, with `bytes_lacking`.
        oldest_ms: when the oldest object of them was written; 0 if none is lacking.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    format_version: Literal[1]
    ended_at_ms: int = Field(ge=0, le=MAX_MS)
    segments_lacking: int
    bytes_lacking: int
    oldest_ms: int = Field(ge=0, le=MAX_MS)


def lag_of(location: Location, now_ms: int) -> StoreRule:
    """Say how far the mirror of a location was behind when `sediment copy --mirror` last ended."""
    stores, key = location.mirrored, f"{location.prefix}{REPORT_NAME}"
    assert stores is not None
    try:
        report = MirrorReport.model_validate_json(stores.mirror.get(key))
    except RemoteResourceNotFoundError:
        text = "no run of `sediment copy --mirror` is known; its lag is only known to its store"
        return StoreRule(RuleLevel.UNKNOWN, f"the mirror of {location}: {text}")
    except (RemoteStorageError, ValidationError) as e:
        return StoreRule(RuleLevel.WARNING, f"the mirror of {location} cannot be read: {e}")
    age_h = (now_ms - report.ended_at_ms) / 3_600_000
    is_late = report.segments_lacking > 0 or age_h > LATE_H
    text = f"the mirror of {location} was copied to {age_h:.1f} hours ago; it lacked then "
    text += f"{counted(report.segments_lacking, 'segment')} ({report.bytes_lacking:,} bytes)"
    if report.oldest_ms:
        text += f", the oldest of {(now_ms - report.oldest_ms) / 3_600_000:.1f} hours"
    return StoreRule(RuleLevel.WARNING if is_late else RuleLevel.OK, text)


@dataclass(slots=True)
class Mirrored:
    """What a run did.

    Attributes:
        segments: complete ones that the location had, with `present` in the mirror before.
        copied: segments of which something was copied, `copied_bytes` in all.
        gone: segments that were deleted meanwhile.
        failed: segments that the mirror still lacks, as `reasons` explains, with `failed_bytes`.
        oldest_ms: when the oldest object was written that the mirror still lacks; 0 for none.
    """

    segments: int = 0
    present: int = 0
    copied: int = 0
    copied_bytes: int = 0
    gone: int = 0
    failed: int = 0
    failed_bytes: int = 0
    oldest_ms: int = 0
    reasons: list[str] = field(default_factory=list)


@dataclass(eq=False)
class MirrorCopy:
    """Copy the objects of complete segments, byte for byte, under the same keys; manifests last.

    A run may be killed at any moment: the next one copies what is not in the mirror yet.

    Attributes:
        acquire: acquire(size_bytes) returns when this many bytes may be read.
    """

    location: Location
    acquire: Callable[[int], None]
    parallel: int
    on_progress: Callable[[Mirrored], None] = lambda _: None
    _done: Mirrored = field(init=False, default_factory=Mirrored)
    _first: StorageBackend = field(init=False)
    _mirror: StorageBackend = field(init=False)
    _lock: Lock = field(init=False, default_factory=Lock)

    def run(self) -> Mirrored:
        """Compare the listings, and copy what the mirror lacks.

        Raises:
            RemoteStorageError: the location has no mirror, or a listing failed; run it again.
        """
        stores = self.location.mirrored
        if stores is None:
            raise RemoteStorageError(f"{self.location} has no mirror in RSM_LOCATIONS_FILE")
        self._first, self._mirror = stores.first, stores.mirror
        with ThreadPoolExecutor(self.parallel, "mirror") as pool:
            for batch in batches(self._lacking(), _BATCH):
                list(pool.map(self._copy_segment, batch))
        done = self._done
        report = MirrorReport(
            format_version=1,
            ended_at_ms=time_ns() // 1_000_000,
            segments_lacking=done.failed,
            bytes_lacking=done.failed_bytes,
            oldest_ms=done.oldest_ms,
        )
        key = f"{self.location.prefix}{REPORT_NAME}"
        self._mirror.put(key, report.model_dump_json().encode("ascii"))
        return done

    def _lacking(self) -> Iterator[Sequence[StoredObject]]:
        """Yield what the mirror lacks of each segment, or of what belongs to none."""
        prefix = self.location.prefix
        theirs = self._mirror.list_objects(prefix)
        ahead = next(theirs, None)
        for name, of_segment in groupby(
            self._first.list_objects(prefix),
            key=lambda each: each.key.removeprefix(prefix).partition(".")[0],
        ):
            objects, there = [*of_segment], dict[str, StoredObject]()
            while ahead is not None and ahead.key <= objects[-1].key:
                there[ahead.key] = ahead
                ahead = next(theirs, None)
            is_complete = any(each.key.endswith(_MANIFEST) for each in objects)
            if name and not is_complete:
                continue  # It is being copied, or never was.
            lacking = [e for e in objects if self._is_wanted(e) and _differs(e, there.get(e.key))]
            with self._lock:
                self._done.segments += bool(name)
                self._done.present += bool(name) and not lacking
            if lacking:
                yield sorted(lacking, key=lambda each: each.key.endswith(_MANIFEST))

    def _is_wanted(self, stored: StoredObject) -> bool:
        name = stored.key.removeprefix(self.location.prefix)
        return not name.startswith(".") or name.startswith((MARKER_NAME, STATE_NAME))

    def _copy_segment(self, objects: Sequence[StoredObject]) -> None:
        copied = 0
        try:
            for each in objects:
                self._copy(each)
                copied += each.size_bytes
            last = objects[-1].key
            if last.endswith(_MANIFEST) and self._first.describe(last) is None:
                self._take_back(objects)
                return
        except RemoteResourceNotFoundError:
            self._take_back(objects)
            return
        except RemoteStorageError as e:
            self._failed(objects, copied, e)
            return
        with self._lock:
            self._done.copied += last.endswith(_MANIFEST)
            self._done.copied_bytes += copied
            self.on_progress(self._done)

    def _failed(
        self, objects: Sequence[StoredObject], copied: int, error: RemoteStorageError
    ) -> None:
        with self._lock:
            done = self._done
            done.failed += 1
            done.failed_bytes += sum(each.size_bytes for each in objects) - copied
            oldest_ms = min(each.modified_ms for each in objects)
            done.oldest_ms = min(done.oldest_ms or oldest_ms, oldest_ms)
            if len(done.reasons) < _MAX_REASONS:
                done.reasons.append(f"{objects[-1].key}: {error}")

    def _take_back(self, objects: Sequence[StoredObject]) -> None:
        """Delete what was copied of a segment that was deleted meanwhile."""
        failures = self._mirror.delete([each.key for each in objects])
        with self._lock:
            self._done.gone += 1
            self._done.reasons += [f"{key}: {e}" for key, e in failures.items()][:_MAX_REASONS]

    def _copy(self, stored: StoredObject) -> None:
        key, size = stored.key, stored.size_bytes
        self.acquire(size)
        if size <= PART_BYTES:
            data = b"".join(self._first.fetch(key, 0, size - 1)) if size else b""
            self._mirror.put(key, data, crc32c(data))
            return
        upload = self._mirror.begin_upload(key)
        try:
            parts = []
            for number, at in enumerate(range(0, size, PART_BYTES), 1):
                end = min(at + PART_BYTES, size) - 1
                data = b"".join(self._first.fetch(key, at, end))
                part = Part(number, at, memoryview(data), crc32c(data))
                parts.append(self._mirror.upload_part(upload, part))
            self._mirror.complete_upload(upload, parts)
        except BaseException:
            with suppress(RemoteStorageError):  # The reason is raised below.
                self._mirror.abort_upload(upload)
            raise


def _differs(first: StoredObject, mirror: StoredObject | None) -> bool:
    """Return whether an object is to be copied: manifests are replaced under their keys."""
    if mirror is None or mirror.size_bytes != first.size_bytes:
        return True
    is_fixed = first.key.endswith((".log", ".indexes"))
    return not is_fixed and first.modified_ms > mirror.modified_ms
