"""Digests of a copy's files, remote_storage_manager.proto."""

from services.api.remote_storage_manager import IndexType
from services.api.segment_digests import CopyDigests, FileDigest, LogDigest
from services.api.validation import within
from services.rpc.converters.enums import index_type
from services.rpc.converters.shared import items_from_proto
from tieredstorage.v1 import remote_storage_manager_pb2 as pb


def digests_to_proto(digests: CopyDigests) -> pb.CopyDigests:
    log = pb.LogDigest(
        whole=_file_to_proto(digests.log.whole),
        chunk_bytes=digests.log.chunk_bytes,
        chunk_crc32c=digests.log.chunk_crc32c,
    )
    indexes = [
        pb.IndexDigest(
            index_type=index_type.to_proto(kind), whole=_file_to_proto(digests.indexes[kind])
        )
        for kind in IndexType
        if kind in digests.indexes
    ]
    return pb.CopyDigests(log=log, indexes=indexes)


def digests_from_proto(message: pb.CopyDigests) -> CopyDigests:
    with within("log"):
        log = LogDigest(
            _file_from_proto(message.log.whole),
            tuple(message.log.chunk_crc32c),
            message.log.chunk_bytes,
        )
    return CopyDigests(log, dict(items_from_proto(message.indexes, "indexes", _index_from_proto)))


def _index_from_proto(message: pb.IndexDigest) -> tuple[IndexType, FileDigest]:
    return index_type.from_proto(message.index_type, "index_type"), _file_from_proto(message.whole)


def _file_to_proto(digest: FileDigest) -> pb.FileDigest:
    return pb.FileDigest(size_bytes=digest.size_bytes, crc32c=digest.crc32c)


def _file_from_proto(message: pb.FileDigest) -> FileDigest:
    return FileDigest(message.size_bytes, message.crc32c)
