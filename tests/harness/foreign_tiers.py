"""Store segments as other tiered storages do, beside an RSM that has them registered."""

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import zstandard

from services.api.ids import uuid_to_text
from services.api.imported_segments import imported_custom_metadata
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.local.seaweedfs import S3Endpoint
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_backend
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, a_segment
from tests.contract.rsm_over_s3 import settings_for

FOREIGN_ID = 7
ORIGINAL = b"of another storage"
LOCAL_SUFFIXES = {
    IndexType.OFFSET: "index",
    IndexType.TIMESTAMP: "timeindex",
    IndexType.PRODUCER_SNAPSHOT: "snapshot",
    IndexType.TRANSACTION: "txnindex",
    IndexType.LEADER_EPOCH: "leader_epoch_checkpoint",
}
AIVEN_NAMES = {
    IndexType.OFFSET: "offset",
    IndexType.TIMESTAMP: "timestamp",
    IndexType.PRODUCER_SNAPSHOT: "producerSnapshot",
    IndexType.LEADER_EPOCH: "leaderEpoch",
    IndexType.TRANSACTION: "transaction",
}
"""In the order of that plugin's object with the indexes."""


def imported(files: Files, custom: bytes | None = ORIGINAL) -> RemoteLogSegmentMetadata:
    """Return the row of an imported segment with these files."""
    return replace(
        a_segment(len(files.log), start_offset=4711),
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        custom_metadata=imported_custom_metadata(FOREIGN_ID, custom),
    )


def aiven_manifest(files: Files, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a manifest of version 1 for chunks that are stored as they are."""
    position, sections = 0, dict[str, Any]()
    for kind, name in AIVEN_NAMES.items():
        if kind in files.indexes:
            sections[name] = {"position": position, "size": len(files.indexes[kind])}
            position += len(files.indexes[kind])
        else:
            sections[name] = None
    chunk = 4 * 1024 * 1024
    return {
        "version": "1",
        "chunkIndex": {
            "type": "fixed",
            "originalChunkSize": chunk,
            "originalFileSize": len(files.log),
            "transformedChunkSize": chunk,
            "finalTransformedChunkSize": len(files.log) % chunk,
        },
        "segmentIndexes": sections,
        "compression": False,
        "remoteLogSegmentMetadata": {"startOffset": 4711},
        **(changes or {}),
    }


def compressed_log(log: bytes, chunk_bytes: int) -> list[bytes]:
    """Return the stored chunks of a log, as that plugin compresses them."""
    starts = range(0, len(log), chunk_bytes)
    return [zstandard.compress(log[start : start + chunk_bytes]) for start in starts]


def packed_sizes(sizes: Sequence[int]) -> str:
    """Return the sizes of chunks as that plugin's manifest has them."""
    *others, last = sizes
    packed = struct.pack(">I", len(sizes))
    if others:
        least = min(others)
        width = max(1, -(-(max(others) - least).bit_length() // 8))
        packed += struct.pack(">IB", least, width)
        packed += b"".join((size - least).to_bytes(width) for size in others)
    packed += struct.pack(">I", last)
    return base64.b64encode(zstandard.compress(packed)).decode()


def compressed_manifest(files: Files, chunk_bytes: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Return a manifest of version 1 for a log in compressed chunks of these stored sizes."""
    chunks = {
        "type": "variable",
        "originalChunkSize": chunk_bytes,
        "originalFileSize": len(files.log),
        "transformedChunks": packed_sizes(sizes),
    }
    return aiven_manifest(files, {"compression": True, "chunkIndex": chunks})


@dataclass(frozen=True)
class ForeignTier:
    """A location with the objects of another storage, and the settings of an RSM beside it.

    Attributes:
        layout: as RSM_LOCATIONS_FILE names it.
        backend: of the location, writable.
    """

    settings: RsmSettings
    layout: str
    backend: StorageBackend
    prefix: str

    def stem(self, row: RemoteLogSegmentMetadata) -> str:
        """Return the keys' common beginning."""
        segment = row.remote_log_segment_id
        tp = segment.topic_id_partition
        folder = f"{tp.topic}-{uuid_to_text(tp.topic_id)}/{tp.partition}"
        if self.layout == "local-tiered-storage":
            folder = f"{tp.topic}-{tp.partition}-{uuid_to_text(tp.topic_id)}"
        return f"{self.prefix}{folder}/{row.start_offset:020d}-{uuid_to_text(segment.id)}"

    def store(
        self,
        row: RemoteLogSegmentMetadata,
        files: Files,
        manifest: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Write the files as the other storage does; return the keys."""
        stem, objects = self.stem(row), {"log": files.log}
        if self.layout == "local-tiered-storage":
            objects |= {LOCAL_SUFFIXES[kind]: data for kind, data in files.indexes.items()}
        else:
            kinds = [kind for kind in AIVEN_NAMES if kind in files.indexes]
            objects["indexes"] = b"".join(files.indexes[kind] for kind in kinds)
            objects["rsm-manifest"] = json.dumps(manifest or aiven_manifest(files)).encode()
        for suffix, data in objects.items():
            self.backend.put(f"{stem}.{suffix}", data)
        return [f"{stem}.{suffix}" for suffix in objects]

    def left(self) -> list[str]:
        return [each.key for each in self.backend.list_objects(self.prefix)]


def local_tier(directory: Path, extra: str = "") -> ForeignTier:
    """Return a location with the files of Kafka's LocalTieredStorage."""
    return _files(directory, "local-tiered-storage", "kafka-tiered-storage/", extra)


def aiven_files(directory: Path, extra: str = "") -> ForeignTier:
    """Return a location with the objects of Aiven's plugin as files."""
    return _files(directory, "aiven", "theirs/", extra)


def _files(directory: Path, layout: str, prefix: str, extra: str) -> ForeignTier:
    own, theirs = directory / "own", directory / "theirs"
    for each in (own, theirs):
        each.mkdir(exist_ok=True)
    place = f'backend = "filesystem"\ndirectory = "{theirs}"\nprefix = "{prefix}"'
    settings = RsmSettings(
        backend="filesystem",
        directory=own,
        part_size_bytes=5 * 1024 * 1024,
        locations_file=_registry(directory, layout, place, extra),
    )
    return ForeignTier(settings, layout, FilesystemStorage(theirs), prefix)


def aiven_tier(directory: Path, s3: S3Endpoint, extra: str = "") -> ForeignTier:
    """Return a location with the objects of Aiven's plugin, in a real store."""
    settings = settings_for(s3)
    prefix = f"{settings.prefix}theirs/"
    place = (
        f'backend = "s3"\nendpoint = "{s3.endpoint}"\nregion = "{s3.region}"\n'
        f'bucket = "{settings.bucket}"\nprefix = "{prefix}"\n'
        f"secure = {str(s3.secure).lower()}"
    )
    registry = _registry(directory, "aiven", place, extra)
    settings = settings.model_copy(
        update={"locations_file": registry, "prefix": f"{settings.prefix}own/"}
    )
    return ForeignTier(settings, "aiven", build_backend(settings), prefix)


def _registry(directory: Path, layout: str, place: str, extra: str) -> Path:
    registry = directory / "locations.toml"
    registry.write_text(f'[[location]]\nid = {FOREIGN_ID}\nlayout = "{layout}"\n{place}\n{extra}\n')
    return registry
