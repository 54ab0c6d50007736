"""Copy one segment: the log, the indexes, and last the manifest that commits the copy."""

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from time import time_ns

from services.api.calls import current_call
from services.api.errors import (
    CorruptSegmentError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    SegmentAlreadyExistsError,
)
from services.api.remote_storage_manager import (
    FileDigest,
    IndexType,
    LogDigest,
    LogSegmentData,
    SegmentChunk,
    SegmentFile,
    SegmentFileHeader,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require
from services.common.failpoints import failpoint
from services.rsm.active_copies import ActiveCopies
from services.rsm.backends.protocol import NoAnswerError, had_no_answer
from services.rsm.deadline import ByteRate
from services.rsm.delete import ObjectDeletes
from services.rsm.digests import RunningDigest
from services.rsm.keys import DataKey
from services.rsm.layout import (
    FIELD,
    MANIFEST_ENCODING,
    MAX_MANIFEST_EPOCHS_BYTES,
    CustomMetadata,
    Manifest,
    SegmentKeys,
    key_use,
)
from services.rsm.locations import Location
from services.rsm.transforms import CopyTransform
from services.rsm.upload import Uploader

_log = logging.getLogger(__name__)


class IncomingFiles:
    """Split the stream of chunks into files. Single use, like the stream."""

    def __init__(self, metadata: RemoteLogSegmentMetadata, chunks: Iterable[SegmentChunk]) -> None:
        self._metadata = metadata
        self._chunks = iter(chunks)

    def read(
        self, header: SegmentFileHeader, digest: RunningDigest
    ) -> Iterator[bytes | memoryview]:
        """Yield the bytes of the next file, and update `digest` with them.

        Raises:
            InvalidRequestError: a chunk of another file, or more or fewer bytes than announced.
            CorruptSegmentError: the crc32c is not the announced one; raised after the last byte.
        """
        file, size, received = header.file.name, header.size_bytes, 0
        while received < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise self._refused(f"{file} ended after {received} of {size} bytes")
            if chunk.file is not header.file:
                text = f"{chunk.file.name} before the end of {file}, at byte {received}"
                raise self._refused(text)
            received += len(chunk.data)
            if received > size:
                raise self._refused(f"{file} has more than the announced {size} bytes")
            if not chunk.data:
                raise self._refused(f"must not be empty; {file} has an empty one")
            digest.update(chunk.data)
            yield chunk.data
        if header.crc32c is not None and header.crc32c != digest.whole.crc32c:
            crcs = f"crc32c is {digest.whole.crc32c:08x}, announced {header.crc32c:08x}"
            raise CorruptSegmentError(self._naming(f"{file}: {crcs}"))

    def expect_end(self) -> None:
        """Raise InvalidRequestError if a chunk follows."""
        chunk = next(self._chunks, None)
        if chunk is not None:
            text = f"{len(chunk.data)} bytes of {chunk.file.name} beyond the announced size"
            raise self._refused(text)

    def _refused(self, fault: str) -> InvalidRequestError:
        return InvalidRequestError(f"chunk: {self._naming(fault)}")

    def _naming(self, fault: str) -> str:
        """Add to a fault its segment and what to do next."""
        first, last = self._metadata.start_offset, self._metadata.end_offset
        segment = self._metadata.remote_log_segment_id
        return f"{segment}, offsets {first} to {last}: {fault}; retry the copy"


class SegmentCopier:
    """Copy segments. Each call is an attempt that writes objects of its own."""

    def __init__(
        self,
        location: Location,
        uploader: Uploader,
        deletes: ObjectDeletes,
        rate: ByteRate,
        active_copies: ActiveCopies,
        require_open: Callable[[], None] = lambda: None,
        deployment_id: str = "",
        *,
        verify_writes: bool = False,
    ) -> None:
        """Set up copies to a location.

        Args:
            deployment_id: for the manifests; empty for none.
            require_open: raises unless the store is known to be this deployment's; active copies
                then fail.
            verify_writes: check that the store has each object before the copy is acknowledged.
        """
        self._location = location
        self._backend = location.backend
        self._uploader = uploader
        self._deletes = deletes
        self._rate = rate
        self._active_copies = active_copies
        self._require_open = require_open
        self._deployment_id = deployment_id
        self._verify_writes = verify_writes

    def copy(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        """Copy a segment and return the custom metadata of the copy that counts.

        That copy may be an earlier one.
        """
        keys = self._location.keys(metadata)
        replaced = self._replaced(metadata) if data.replaces else None
        with self._active_copies.copying(keys) as wait_for_turn:
            manifest = self._write(metadata, data, keys, wait_for_turn)
            if replaced is not None:
                return self._commit_over(keys, self._replacing(keys, manifest, replaced))
            counting = self._commit(keys, manifest)
            failpoint("rsm.manifest_written")
            if counting.attempt != manifest.attempt:
                self._remove(keys, manifest.attempt)
                self._require_same_segment(keys, counting, manifest)
        return counting.custom_metadata(self._location.location_id).to_bytes()

    def _replaced(self, metadata: RemoteLogSegmentMetadata) -> CustomMetadata:
        """Return the custom metadata of the copy that is to be replaced.

        Raises:
            InvalidRequestError: there is none, or its location takes no new objects.
        """
        require(metadata.custom_metadata is not None, FIELD, "must name the copy to be replaced")
        custom = CustomMetadata.from_bytes(metadata.custom_metadata or b"")
        is_here = custom.location_id == self._location.location_id
        text = f"is of location {custom.location_id}; copies are written to {self._location} only"
        require(is_here, FIELD, text)
        return custom

    def _replacing(self, keys: SegmentKeys, mine: Manifest, replaced: CustomMetadata) -> Manifest:
        """Return a manifest with what is known of the replaced copy, so that it stays readable."""
        try:
            before = self._location.read_manifest_of(keys, replaced)
        except (RemoteResourceNotFoundError, CorruptSegmentError):
            return replace(mine, replaced_indexes={})
        return replace(
            mine,
            replaced_indexes=before.indexes,
            replaced_stored=before.stored,
            replaced_wrapped_key=before.wrapped_key,
        )

    def _commit_over(self, keys: SegmentKeys, mine: Manifest) -> bytes:
        """Put the manifest over that of the replaced copy; return the custom metadata.

        After a failure the objects of this attempt stay: the manifest may name them. They are
        orphans until the segment is repaired again or deleted.
        """
        if not current_call().is_active():
            self._remove(keys, mine.attempt)
            raise RetriableRemoteStorageError(
                f"{keys.stem}: the client has cancelled the copy; retry"
            )
        try:
            written = self._location.manifest_bytes(mine)
            self._backend.put(keys.manifest, written)
            self._require_stored(keys.manifest, len(written))
        except RemoteStorageError as e:
            _log_leftovers(keys, mine, e)
            raise
        return mine.custom_metadata(self._location.location_id).to_bytes()

    def _write(
        self,
        metadata: RemoteLogSegmentMetadata,
        data: LogSegmentData,
        keys: SegmentKeys,
        wait_for_turn: Callable[[], None],
    ) -> Manifest:
        """Write all files and wait for the turn to put the manifest; clean up if either fails."""
        attempt = secrets.token_hex(8)
        # Before any byte: the provider of keys may be away.
        key = self._location.new_key(metadata, attempt)
        try:
            manifest = self._write_files(metadata, data, keys, attempt, key)
            manifest = replace(manifest, wrapped_key=None if key is None else key.wrapped)
            self._require_stored(keys.log(attempt), manifest.log_object_bytes)
            self._require_stored(keys.indexes(attempt), manifest.indexes_object_bytes)
            wait_for_turn()
            self._require_open()
        except BaseException:
            self._remove(keys, attempt)
            raise
        return manifest

    def _write_files(
        self,
        metadata: RemoteLogSegmentMetadata,
        data: LogSegmentData,
        keys: SegmentKeys,
        attempt: str,
        key: DataKey | None,
    ) -> Manifest:
        use = key_use(self._deployment_id, metadata, attempt)
        transform = CopyTransform(self._location.transforms, use, key)
        incoming = IncomingFiles(metadata, data.chunks)
        log = self._write_log(keys.log(attempt), data.files[0], incoming, transform)
        failpoint("rsm.log_written")
        indexes, epochs = self._write_indexes(
            keys.indexes(attempt), data.files[1:], incoming, transform
        )
        failpoint("rsm.indexes_written")
        return Manifest(
            metadata,
            attempt,
            time_ns() // 1_000_000,
            log,
            indexes,
            self._deployment_id,
            epochs,
            stored=transform.form,
        )

    def _write_log(
        self,
        key: str,
        header: SegmentFileHeader,
        incoming: IncomingFiles,
        transform: CopyTransform,
    ) -> LogDigest:
        digest = RunningDigest()
        written = RunningDigest() if transform.is_any else digest
        pieces = self._let_through(incoming.read(header, digest))
        with self._uploader.object(key, transform.most_bytes([header]), written) as upload:
            for piece in transform.stored(header, pieces):
                if written is not digest:
                    written.update(piece)
                upload.write(piece)
        return digest.log

    def _write_indexes(
        self,
        key: str,
        headers: Sequence[SegmentFileHeader],
        incoming: IncomingFiles,
        transform: CopyTransform,
    ) -> tuple[dict[IndexType, FileDigest], str | None]:
        """Write the index files; return their digests, and what the manifest has of the epochs."""
        written: dict[IndexType, FileDigest] = {}
        epochs = None
        with self._uploader.object(key, transform.most_bytes(headers)) as upload:
            for header in headers:
                digest = RunningDigest()
                pieces = self._let_through(incoming.read(header, digest))
                is_epochs = header.file is SegmentFile.LEADER_EPOCH
                if is_epochs and header.size_bytes <= MAX_MANIFEST_EPOCHS_BYTES:
                    kept = b"".join(pieces)
                    pieces = iter([kept] if kept else [])
                    epochs = kept.decode(MANIFEST_ENCODING)
                for piece in transform.stored(header, pieces):
                    upload.write(piece)
                written[IndexType[header.file.name]] = digest.whole
            incoming.expect_end()
        return written, epochs

    def _let_through(self, pieces: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for piece in self._rate.limited(pieces):
            self._require_open()
            yield piece

    def _commit(self, keys: SegmentKeys, mine: Manifest) -> Manifest:
        """Put the manifest unless one exists; return the manifest that counts.

        If none counts, the objects of this attempt are deleted. If the outcome is unknown they stay
        until the id is deleted: the manifest may exist, or may yet be written, and another copy may
        return it. They stay, too, if the PUT got no response and no manifest is found.
        """
        if not current_call().is_active():
            # The caller may have deleted the segment since, and its metadata.
            self._remove(keys, mine.attempt)
            raise RetriableRemoteStorageError(
                f"{keys.stem}: the client has cancelled the copy; retry"
            )
        why: RemoteStorageError
        is_superseded = False
        try:
            written = self._location.manifest_bytes(mine)
            if self._backend.put_if_absent(keys.manifest, written):
                self._require_stored(keys.manifest, len(written))
                return mine
            is_superseded = True  # This attempt never counts.
            why = RetriableRemoteStorageError(f"{keys.manifest}: deleted during the copy; retry")
        except RemoteStorageError as e:
            why = e  # The store may have written it although the response was lost.
            if not current_call().is_active():
                _log_leftovers(keys, mine, why)
                raise
        try:
            return self._location.read_manifest(keys)
        except (RemoteResourceNotFoundError, CorruptSegmentError) as e:
            if had_no_answer(why):
                _log_leftovers(keys, mine, why)
            else:
                self._remove(keys, mine.attempt)
            if isinstance(e, CorruptSegmentError):
                raise
            raise why from None
        except RemoteStorageError as e:
            if is_superseded:
                self._remove(keys, mine.attempt)
                raise
            _log_leftovers(keys, mine, e)
            raise why from None

    def _require_stored(self, key: str, size_bytes: int) -> None:
        """Check, if writes are verified, that the store has an object that it has acknowledged."""
        if not self._verify_writes:
            return
        stored = self._backend.describe(key)
        if stored is not None and stored.size_bytes == size_bytes:
            return
        fault = "does not have it" if stored is None else f"has {stored.size_bytes:,} of it"
        raise RetriableRemoteStorageError(
            f"{key} in {self._location}: the store acknowledged {size_bytes:,} bytes and {fault}; "
            "retry, and check what the store or a proxy before it does with writes"
        ) from NoAnswerError()

    def _require_same_segment(self, keys: SegmentKeys, counting: Manifest, mine: Manifest) -> None:
        """Check that a repeated copy has the bytes of the copy that counts.

        A manifest can outlive its objects: a delete of the id removed them while the PUT of the
        manifest was in flight, and the PUT took effect afterwards.
        """
        segment = mine.metadata.remote_log_segment_id
        if not counting.has_same_bytes(mine):
            raise SegmentAlreadyExistsError(
                f"{segment} was copied with other content; use a new id for each copy"
            )
        present = {stored.key for stored in self._backend.list_objects(keys.prefix)}
        if not {keys.log(counting.attempt), keys.indexes(counting.attempt)} <= present:
            raise SegmentAlreadyExistsError(f"{segment} has lost its objects; delete it first")

    def _remove(self, keys: SegmentKeys, attempt: str) -> None:
        """Delete the objects of this attempt; log those that cannot be deleted."""
        written = [keys.log(attempt), keys.indexes(attempt)]
        failures = self._deletes.clean_up(self._backend, written)
        for key, error in failures.items():
            _log.warning("%s cannot be deleted and stays in the store: %s", key, error)


def _log_leftovers(keys: SegmentKeys, mine: Manifest, why: RemoteStorageError) -> None:
    _log.warning("objects %s.%s.* stay in the store: %s", keys.stem, mine.attempt, why)
