"""Copy segments into the files of Kafka's LocalTieredStorage, for a cluster that leaves."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from services.api.ids import RemoteLogSegmentId
from services.api.remote_storage_manager import LogSegmentData, SegmentFile
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.backends.protocol import Part
from services.rsm.foreign_layouts import LOCAL_FOLDER, LocalTieredStorageLayout


class LocalTieredStorageDirectory:
    """A target whose directory LocalTieredStorage is configured with.

    The leader epochs are written last, after the other files were verified: a segment that has
    them is complete.
    """

    def __init__(self, directory: Path) -> None:
        self._store = FilesystemStorage(directory)
        self._layout = LocalTieredStorageLayout()
        self._leader_epochs: dict[RemoteLogSegmentId, bytes] = {}

    def wants(self, row: RemoteLogSegmentMetadata) -> bool:
        return self._store.describe(self._key(row, SegmentFile.LEADER_EPOCH)) is None

    def write(
        self, row: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> RemoteLogSegmentMetadata:
        for header in data.files:
            if header.size_bytes == 0 and header.file is not SegmentFile.LEADER_EPOCH:
                self._store.put(self._key(row, header.file), b"")
        for file, chunks in groupby(data.chunks, key=lambda chunk: chunk.file):
            pieces = (bytes(chunk.data) for chunk in chunks)
            if file is SegmentFile.LEADER_EPOCH:
                self._leader_epochs[row.remote_log_segment_id] = b"".join(pieces)
            else:
                self._write_file(self._key(row, file), pieces)
        return row

    def read(self, copied: RemoteLogSegmentMetadata, file: SegmentFile) -> Iterator[bytes]:
        if file is SegmentFile.LEADER_EPOCH:
            return iter((self._leader_epochs.get(copied.remote_log_segment_id, b""),))
        key = self._key(copied, file)
        stored = self._store.describe(key)
        size_bytes = 0 if stored is None else stored.size_bytes
        return self._store.fetch(key, 0, size_bytes - 1) if size_bytes else iter(())

    def finish(self, row: RemoteLogSegmentMetadata, copied: RemoteLogSegmentMetadata) -> None:
        epochs = self._leader_epochs.pop(copied.remote_log_segment_id, b"")
        self._store.put(self._key(row, SegmentFile.LEADER_EPOCH), epochs)

    def _write_file(self, key: str, pieces: Iterator[bytes]) -> None:
        upload, offset = self._store.begin_upload(key), 0
        try:
            for number, piece in enumerate(pieces, 1):
                self._store.upload_part(upload, Part(number, offset, memoryview(piece)))
                offset += len(piece)
            self._store.complete_upload(upload, ())
        except BaseException:
            self._store.abort_upload(upload)
            raise

    def _key(self, row: RemoteLogSegmentMetadata, file: SegmentFile) -> str:
        return self._layout.key(LOCAL_FOLDER, row, file)
