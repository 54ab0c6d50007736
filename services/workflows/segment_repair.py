"""Repair a damaged segment: copy it with whole files, and let that copy be read.

The files are those of the mirror, if there they are whole. Else those of the location itself, if
the log is whole: RSM rebuilds lost indexes, as each time it serves them. Else the log is that of a
broker, if it has the digest of what was copied, with the indexes that RSM serves or the broker has.
A repair makes that last: it streams log and indexes into another copy under the same id, and
ReplaceSegmentData lets the segment be read from there. The objects of before stay for readers with
an earlier look-up; reconciliation deletes them.

A crash leaves objects that reconciliation deletes, and perhaps a manifest that RLMM does not know
yet; the next repair ends that. A log that is damaged itself is copied no further than to its end,
where RSM compares it with what was copied first, and nothing is changed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from services.api.calls import MutationContext
from services.api.errors import (
    ConcurrentUpdateError,
    CorruptSegmentError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.operations import Anomaly
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import (
    CopyDigests,
    FileDigest,
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
    SegmentChunk,
    SegmentFile,
    SegmentFileHeader,
)
from services.api.segment_objects import ObjectLocation, SegmentObject, SegmentObjects
from services.api.segments import RemoteLogSegmentMetadata, in_location
from services.common.bounded_file import open_regular
from services.common.failpoints import failpoint

CHUNK_BYTES = 256 * 1024
_LOG = ".log"
"""The end of the key of a log."""

Pieces = Iterator[bytes | memoryview]
LocalFiles = Callable[[RemoteLogSegmentMetadata], Mapping[SegmentFile, Path]]
"""Return where a broker's log directories have the files of a segment, if they have them.

Raises:
    RemoteResourceNotFoundError: they do not have the partition.
"""


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result of a repair of a segment.

    Attributes:
        done: the segment is read from a whole copy now.
        text: what was rebuilt, or where the files were copied from; or why nothing was.
    """

    segment_id: RemoteLogSegmentId
    done: bool
    text: str

    def __str__(self) -> str:
        return f"{self.segment_id}: {'repaired' if self.done else 'not repaired'}: {self.text}"


class _Source(NamedTuple):
    """Where whole files may be: here (no name), in another location, or in a broker's log."""

    reason: str
    manifest: ObjectLocation
    name: str = ""
    local_files: LocalFiles | None = None


@dataclass(eq=False)
class SegmentRepair:
    """Repair one segment at a time, with one chunk of the log and all indexes in memory.

    Attributes:
        run_id: of the scrub, for the audit trail.
        acquire: acquire(size_bytes) returns when this many bytes may be read.
        local_files: None if no broker's log may be read.
    """

    rlmm: RemoteLogMetadataManager
    rsm: RemoteStorageManager
    objects: SegmentObjects
    run_id: str
    acquire: Callable[[int], None]
    local_files: LocalFiles | None = None

    def attempt(
        self,
        segment: RemoteLogSegmentMetadata,
        manifest: SegmentObject,
        anomalies: Sequence[Anomaly],
    ) -> Repaired:
        """Copy a damaged segment with whole files and let it be read from there.

        Changes nothing if no location has a whole log and manifest, or if anything is refused.

        Args:
            segment: finished, as RLMM has it.
            manifest: of the copy that is damaged.
            anomalies: what was found of it.
        """
        self.acquire(manifest.size_bytes)
        segment_id, here = segment.remote_log_segment_id, manifest.location
        is_log_damaged = any(each.object_key.endswith(_LOG) for each in anomalies)
        texts = ["its log is damaged itself"] if is_log_damaged else []
        for source in self._sources(manifest, is_log_damaged):
            try:
                custom_metadata, what = self._copy(segment, source)
            except RemoteStorageError as e:
                text = str(e) if source.manifest == here else f"{source.name}: {e}"
                texts += [] if text in texts else [text]
            else:
                return Repaired(
                    segment_id, *self._replace(segment, custom_metadata, source.reason, what)
                )
        return Repaired(segment_id, False, "; ".join(texts))

    def _sources(self, manifest: SegmentObject, is_log_damaged: bool) -> Iterator[_Source]:
        here = manifest.location
        if manifest.mirror_location_id:
            there = replace(here, location_id=manifest.mirror_location_id)
            yield _Source("copied from a mirror", there, f"location {there.location_id}")
        if not is_log_damaged:
            yield _Source("indexes rebuilt", here)
        if self.local_files is not None:
            name = "the broker's log"
            yield _Source(f"copied from {name}", here, name, self.local_files)

    def _copy(self, segment: RemoteLogSegmentMetadata, source: _Source) -> tuple[bytes, str]:
        """Copy a segment from one source; return its custom metadata, and what was done."""
        if segment.custom_metadata is None:
            raise InvalidRequestError("it has no custom metadata: no other copy can follow it")
        digests = self._digests(source.manifest)
        stored = in_location(segment, source.manifest.location_id)
        files = source.local_files(segment) if source.local_files else {}
        changed = [f"copied from {source.name}"] if source.name else []
        indexes = self._indexes(stored, digests, files, changed)
        log, path = digests.log.whole, files.get(SegmentFile.LOG)
        pieces = self._fetched(stored, log) if path is None else self._local(path, log)
        custom_metadata = self.rsm.copy_log_segment_data(segment, _data(log, pieces, indexes))
        failpoint("replacement.copied")
        assert custom_metadata is not None  # RSM has returned some for the first copy.
        return custom_metadata, ", ".join(changed) or "no index; the manifest was another copy's"

    def _digests(self, manifest: ObjectLocation) -> CopyDigests:
        try:
            digests = self.objects.read_segment_manifest(manifest).digests
        except (CorruptSegmentError, RemoteResourceNotFoundError) as e:
            raise CorruptSegmentError(
                f"nothing proves what was copied ({e}); bring back an older version of {manifest}, "
                "then scrub again"
            ) from e
        assert digests is not None  # Views of many manifests alone have none.
        return digests

    def _replace(
        self, segment: RemoteLogSegmentMetadata, copied: bytes, reason: str, what: str
    ) -> tuple[bool, str]:
        """Let a segment be read from its other copy; return whether it is, and what was done."""
        assert segment.custom_metadata is not None
        context = MutationContext(reason=reason, rule_detail=f"scrub {self.run_id}: {what}"[:256])
        segment_id, before = segment.remote_log_segment_id, segment.custom_metadata
        try:
            try:
                self.rlmm.replace_segment_data(segment_id, before, copied, context)
                return True, what
            except (InvalidStateTransitionError, RemoteResourceNotFoundError):
                # It is marked: its deletion may have come before the copy's objects.
                remains = replace(segment, custom_metadata=copied)
                [error] = self.rsm.delete_log_segment_data_batch([remains])
        except ConcurrentUpdateError:
            return False, "another run has replaced its bytes meanwhile; scrub again"
        except RemoteStorageError as e:
            return False, str(e)
        left = "" if error is None else f"; objects of the new copy are left: {error}"
        return False, f"it was marked for deletion meanwhile{left}"

    def _indexes(
        self,
        segment: RemoteLogSegmentMetadata,
        digests: CopyDigests,
        files: Mapping[SegmentFile, Path],
        changed: list[str],
    ) -> dict[IndexType, bytes]:
        """Read all index files; add the names of those that were rebuilt to `changed`."""
        indexes: dict[IndexType, bytes] = {}
        for kind in (kind for kind in IndexType if kind in digests.indexes):
            path = files.get(SegmentFile[kind.name])
            try:
                indexes[kind] = b"".join(self.rsm.fetch_index(segment, kind, as_stored=True))
            except (CorruptSegmentError, RemoteResourceNotFoundError):
                if path is not None:
                    indexes[kind] = b"".join(self._local(path, digests.indexes[kind]))
                    continue
                changed.append(kind.name)
                indexes[kind] = b"".join(self.rsm.fetch_index(segment, kind))
        return indexes

    def _fetched(self, segment: RemoteLogSegmentMetadata, log: FileDigest) -> Pieces:
        if log.size_bytes:
            for piece in self.rsm.fetch_log_segment(segment, 0):
                self.acquire(len(piece))
                yield piece

    def _local(self, path: Path, copied: FileDigest) -> Pieces:
        """Yield a broker's file, no more of it than was copied.

        Raises:
            RemoteStorageError: it cannot be read, or, at its end, is not what was copied.
        """
        size_bytes = crc = 0
        try:
            with open(open_regular(path), "rb", buffering=0) as file:
                while piece := file.read(CHUNK_BYTES):
                    self.acquire(len(piece))
                    size_bytes, crc = size_bytes + len(piece), crc32c(piece, crc)
                    if size_bytes <= copied.size_bytes:
                        yield piece
        except OSError as e:
            raise RemoteStorageError(f"{path}: {e.strerror or type(e).__name__}") from e
        if (found := FileDigest(size_bytes, crc)) != copied:
            raise CorruptSegmentError(
                f"{path} is not what was copied: it has {_text(found)}, copied were {_text(copied)}"
            )


def _text(digest: FileDigest) -> str:
    return f"{digest.size_bytes:,} bytes with crc32c {digest.crc32c:08x}"


def _data(log: FileDigest, pieces: Pieces, indexes: Mapping[IndexType, bytes]) -> LogSegmentData:
    headers = [SegmentFileHeader(SegmentFile.LOG, log.size_bytes, log.crc32c)]
    headers += [
        SegmentFileHeader(SegmentFile[kind.name], len(data)) for kind, data in indexes.items()
    ]
    return LogSegmentData(headers, _chunks(pieces, indexes), replaces=True)


def _chunks(pieces: Pieces, indexes: Mapping[IndexType, bytes]) -> Iterator[SegmentChunk]:
    for piece in pieces:
        yield SegmentChunk(SegmentFile.LOG, piece)
    for kind, data in indexes.items():
        for at in range(0, len(data), CHUNK_BYTES):
            yield SegmentChunk(SegmentFile[kind.name], data[at : at + CHUNK_BYTES])
