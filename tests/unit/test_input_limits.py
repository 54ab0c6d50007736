"""Test that a file from outside is refused by name when it is huge, before it is in memory."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from services.api.errors import CorruptSegmentError, InvalidRequestError
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.common.bounded_file import SecretFileError, read_secret
from services.common.client_security import ClientSecurity
from services.local.certificates import CertificateAuthority
from services.rlm.fetch.index_cache import RemoteIndexCache
from services.rlm.fetch.index_files import IndexFileLimits, IndexFiles
from services.rlm.kafka_admin.security import KafkaSecurity, KafkaSecurityError, SecurityProtocol
from services.rlm.kafka_log.checkpoints import (
    HIGH_WATERMARKS,
    META_PROPERTIES,
    PARTITION_METADATA,
    read_broker_id,
    read_offset_checkpoint,
    read_partition_metadata,
)
from services.rlm.kafka_log.log_dir import read_cluster_id
from services.rlm.kafka_log.partition_dir import (
    LEADER_EPOCH_CHECKPOINT,
    LogDirError,
    LogFileError,
    read_lineage,
    read_producer_snapshot,
    read_side_file,
)
from services.rpc.client.channel import open_channel
from services.rpc.tls import TlsFileError, TlsFiles, read_tls
from services.rsm.factory import build_locations
from services.rsm.layout import CustomMetadata
from services.rsm.settings import RsmSettings
from tests.harness.tier import a_topic, segment

GIB = 1024**3
MIB = 1024**2
(TP,) = a_topic()


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * MIB


def huge(path: Path) -> Path:
    """Make a file of 8 GiB that takes no room."""
    with path.open("wb") as file:
        file.truncate(8 * GIB)
    return path


@pytest.mark.parametrize(
    ("name", "read"),
    [
        (META_PROPERTIES, lambda path: read_broker_id(path.parent)),
        (PARTITION_METADATA, lambda path: read_partition_metadata(path.parent, "t", 0)),
        (HIGH_WATERMARKS, read_offset_checkpoint),
        (LEADER_EPOCH_CHECKPOINT, lambda path: read_lineage(path.parent)),
        ("00000000000000000010.snapshot", read_producer_snapshot),
        ("00000000000000000010.index", read_side_file),
    ],
)
def test_a_file_of_a_log_directory_is_refused_unread(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    path = huge(tmp_path / name)
    too_large = r"larger than \d+ bytes, the limit of RLM"
    with little_memory(), pytest.raises(LogFileError, match=too_large) as refused:
        read(path)
    assert refused.value.path == path


def test_a_huge_meta_properties_has_no_cluster_id(tmp_path: Path) -> None:
    huge(tmp_path / META_PROPERTIES)
    with little_memory(), pytest.raises(LogDirError, match=r"has no cluster\.id"):
        read_cluster_id([tmp_path])


def test_a_huge_registry_of_locations_is_refused(tmp_path: Path) -> None:
    path = huge(tmp_path / "locations.toml")
    settings = RsmSettings(backend="filesystem", directory=tmp_path, locations_file=path)
    with little_memory(), pytest.raises(SystemExit, match=f"{path}: has over 1048576 bytes"):
        build_locations(settings)


def test_a_huge_secret_is_refused(tmp_path: Path) -> None:
    path = huge(tmp_path / "password")
    too_large = f"^{path}: cannot be read: has over 65536 bytes$"
    with little_memory(), pytest.raises(SecretFileError, match=too_large):
        read_secret(path)


@pytest.mark.parametrize("which", ["certificate", "key", "ca"])
def test_a_huge_file_for_tls_is_refused(tmp_path: Path, which: str) -> None:
    authority = CertificateAuthority(tmp_path)
    own = authority.issue("own")
    files = TlsFiles(own.certificate, own.key, authority.certificate)
    path = huge(getattr(files, which))
    too_large = f"^{path}: cannot be read: has over 1048576 bytes$"
    with little_memory(), pytest.raises(TlsFileError, match=too_large):
        read_tls(files)


def test_a_huge_token_is_refused(tmp_path: Path) -> None:
    ca = CertificateAuthority(tmp_path).certificate
    path = huge(tmp_path / "token")
    too_large = f"^token file {path}: cannot be read: has over 1048576 bytes$"
    with little_memory(), pytest.raises(InvalidRequestError, match=too_large):
        open_channel("localhost:1", ClientSecurity(ca=ca, token=path))


@pytest.mark.parametrize("which", ["ssl_ca_file", "ssl_certificate_file", "ssl_key_file"])
def test_a_huge_file_for_kafka_is_refused(tmp_path: Path, which: str) -> None:
    authority = CertificateAuthority(tmp_path)
    own = authority.issue("own")
    security = KafkaSecurity(
        SecurityProtocol.SSL,
        ssl_ca_file=authority.certificate,
        ssl_certificate_file=own.certificate,
        ssl_key_file=own.key,
    )
    path = huge(getattr(security, which))
    too_large = f"RLM_KAFKA_{which.upper()}: {path}: cannot be read: has over 1048576 bytes"
    with little_memory(), pytest.raises(KafkaSecurityError, match=too_large):
        security.connection_options()


def test_huge_custom_metadata_is_refused() -> None:
    with little_memory(), pytest.raises(InvalidRequestError, match="custom_metadata"):
        CustomMetadata.from_bytes(bytes(MIB))


def test_an_index_that_never_ends_is_refused(tmp_path: Path) -> None:
    class Endless:
        """An RSM whose index never ends."""

        def fetch_index(
            self, metadata: RemoteLogSegmentMetadata, index_type: IndexType
        ) -> Iterator[bytes]:
            chunk = bytes(MIB)
            while True:
                yield chunk

    files = IndexFiles(IndexFileLimits(tmp_path))
    cache = RemoteIndexCache(cast(RemoteStorageManager, Endless()), MIB, files)
    too_large = (
        "its OFFSET index is larger than 268435456 bytes, so it is damaged; "
        f"run `sediment scrub --topic {TP.topic}`$"
    )
    with pytest.raises(CorruptSegmentError, match=too_large):
        cache.offset_index(segment(TP, 0))
