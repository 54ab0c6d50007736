"""Repair a damaged segment: copy it with whole files, and let that copy be read.

The files are those of the mirror, if there they are whole. Else the log must be whole, and RSM
rebuilds lost indexes, as each time it serves them. A repair makes that last: it streams the log and
the indexes that RSM serves into another copy under the same id, and ReplaceSegmentData lets the
segment be read from there. The log's bytes move twice, once from the store and once into it. The
objects of before stay for readers with an earlier look-up; reconciliation deletes them.

A crash leaves objects that reconciliation deletes, and perhaps a manifest that RLMM does not know
yet; the next repair ends that. A log that is damaged itself is copied no further than to its end,
where RSM compares it with what was copied first, and nothing is changed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from services.api.calls import MutationContext
from services.api.errors import (
    ConcurrentUpdateError,
    CorruptSegmentError,
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
from services.common.failpoints import failpoint

CHUNK_BYTES = 256 * 1024
_REASON = "indexes rebuilt"
_OTHER_REASON = "copied from a mirror"
_LOG = ".log"
"""The end of the key of a log."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result of a repair of a segment.

    Attributes:
        done: the segment is read from a whole copy now.
        text: what was rebuilt or taken from another location, or why nothing was.
    """

    segment_id: RemoteLogSegmentId
    done: bool
    text: str

    def __str__(self) -> str:
        return f"{self.segment_id}: {'repaired' if self.done else 'not repaired'}: {self.text}"


@dataclass(eq=False)
class SegmentRepair:
    """Repair one segment at a time, with one chunk of the log and all indexes in memory.

    Attributes:
        run_id: of the scrub, for the audit trail.
        acquire: acquire(size_bytes) returns when this many bytes may be read.
    """

    rlmm: RemoteLogMetadataManager
    rsm: RemoteStorageManager
    objects: SegmentObjects
    run_id: str
    acquire: Callable[[int], None]

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
        done, texts, here = False, list[str](), manifest.location
        if manifest.mirror_location_id:
            there = replace(here, location_id=manifest.mirror_location_id)
            origin = f"location {there.location_id}"
            done, text = self._repair_from(there, segment, [f"copied from {origin}"])
            texts.append(text if done else f"{origin}: {text}")
        if not done and any(each.object_key.endswith(_LOG) for each in anomalies):
            texts.append("its log is damaged itself")
        elif not done:
            done, text = self._repair_from(here, segment)
            texts.append(text)
        text = texts[-1] if done else "; ".join(reversed(texts))
        return Repaired(segment.remote_log_segment_id, done, text)

    def _repair_from(
        self,
        manifest: ObjectLocation,
        segment: RemoteLogSegmentMetadata,
        origin: Sequence[str] = (),
    ) -> tuple[bool, str]:
        """Copy a segment with the files of one location, which `origin` names if it is another."""
        try:
            digests = self.objects.read_segment_manifest(manifest).digests
            source = in_location(segment, manifest.location_id)
            return self._repair(segment, source, digests, origin)
        except RemoteStorageError as e:
            return False, str(e)

    def _repair(
        self,
        segment: RemoteLogSegmentMetadata,
        source: RemoteLogSegmentMetadata,
        digests: CopyDigests | None,
        origin: Sequence[str],
    ) -> tuple[bool, str]:
        if segment.custom_metadata is None or digests is None:
            return False, "it has no custom metadata, so that no other copy can follow it"
        try:
            indexes, changed = self._indexes(source, digests)
            data = self._data(source, digests.log.whole, indexes)
            custom_metadata = self.rsm.copy_log_segment_data(segment, data)
        except (CorruptSegmentError, RemoteResourceNotFoundError) as e:
            return False, f"it cannot be rebuilt: {e}"
        failpoint("replacement.copied")
        assert custom_metadata is not None  # RSM has returned some for the first copy.
        what = ", ".join((*origin, *changed)) or "no index; the manifest was another copy's"
        reason = _OTHER_REASON if origin else _REASON
        context = MutationContext(reason=reason, rule_detail=f"scrub {self.run_id}: {what}"[:256])
        segment_id = segment.remote_log_segment_id
        try:
            self.rlmm.replace_segment_data(
                segment_id, segment.custom_metadata, custom_metadata, context
            )
        except ConcurrentUpdateError:
            return False, "another run has replaced its bytes meanwhile; scrub again"
        except (InvalidStateTransitionError, RemoteResourceNotFoundError):
            # It is marked: its deletion may have come before the copy's objects.
            copied = replace(segment, custom_metadata=custom_metadata)
            [error] = self.rsm.delete_log_segment_data_batch([copied])
            left = "" if error is None else f"; objects of the new copy are left: {error}"
            return False, f"it was marked for deletion meanwhile{left}"
        return True, what

    def _indexes(
        self, segment: RemoteLogSegmentMetadata, digests: CopyDigests
    ) -> tuple[dict[IndexType, bytes], Sequence[str]]:
        """Read all index files; return them, and the names of those that were rebuilt."""
        indexes: dict[IndexType, bytes] = {}
        changed: list[str] = []
        for kind in (kind for kind in IndexType if kind in digests.indexes):
            stored = self._stored(segment, kind)
            if stored is None:
                changed.append(kind.name)
                stored = b"".join(self.rsm.fetch_index(segment, kind))
            indexes[kind] = stored
        return indexes, changed

    def _stored(self, segment: RemoteLogSegmentMetadata, kind: IndexType) -> bytes | None:
        """Return an index as it was copied; None if it is lost or damaged."""
        try:
            return b"".join(self.rsm.fetch_index(segment, kind, as_stored=True))
        except (CorruptSegmentError, RemoteResourceNotFoundError):
            return None

    def _data(
        self,
        segment: RemoteLogSegmentMetadata,
        log: FileDigest,
        indexes: Mapping[IndexType, bytes],
    ) -> LogSegmentData:
        headers = [SegmentFileHeader(SegmentFile.LOG, log.size_bytes, log.crc32c)]
        headers += [
            SegmentFileHeader(SegmentFile[kind.name], len(data)) for kind, data in indexes.items()
        ]
        return LogSegmentData(headers, self._chunks(segment, log, indexes), replaces=True)

    def _chunks(
        self,
        segment: RemoteLogSegmentMetadata,
        log: FileDigest,
        indexes: Mapping[IndexType, bytes],
    ) -> Iterator[SegmentChunk]:
        if log.size_bytes:
            for piece in self.rsm.fetch_log_segment(segment, 0):
                self.acquire(len(piece))
                yield SegmentChunk(SegmentFile.LOG, piece)
        for kind, data in indexes.items():
            for at in range(0, len(data), CHUNK_BYTES):
                yield SegmentChunk(SegmentFile[kind.name], data[at : at + CHUNK_BYTES])
