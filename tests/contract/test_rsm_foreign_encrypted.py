"""Read segments that Aiven's plugin encrypted."""

import base64
import json
import os
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from Crypto.Cipher import PKCS1_OAEP
from Crypto.Hash import SHA3_512
from Crypto.PublicKey import RSA
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from services.api.errors import CorruptSegmentError, NotServedError, RemoteResourceNotFoundError
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.factory import build_manager
from services.rsm.foreign_keys import KeyPairs
from tests.contract.remote_storage_manager_contract import MIB, Files, fetched, index, some_bytes
from tests.harness.foreign_tiers import (
    AIVEN_NAMES,
    ForeignTier,
    aiven_files,
    aiven_manifest,
    compressed_log,
    compressed_manifest,
    imported,
)

MADE_IN_JAVA = json.loads((Path(__file__).parents[1] / "data/aiven_key_pair.json").read_text())
PEM = "\n".join(
    ["-----BEGIN PRIVATE KEY-----", *MADE_IN_JAVA["private_key"], "-----END PRIVATE KEY-----", ""]
)
FILES = Files(b"".join(number.to_bytes(2) for number in range(2_048)))
ADDITIONAL = b"of this segment"
NONCE_AND_TAG_BYTES = 28


def private_file(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(0o640)
    return path


def data_key_text(key: bytes, pair: str = "pair-1") -> str:
    wrapped = PKCS1_OAEP.new(RSA.import_key(PEM), hashAlgo=SHA3_512).encrypt(key)
    return f"{pair}:{base64.b64encode(wrapped).decode()}"


@dataclass
class Encrypted:
    """One segment as that plugin stores it with encryption, and the key pair to read it."""

    tier: ForeignTier
    row: RemoteLogSegmentMetadata
    manifest: dict[str, Any]
    chunks: list[bytes]
    indexes: dict[IndexType, bytes]

    def store(self) -> None:
        stored = Files(b"".join(self.chunks), self.indexes)
        self.tier.store(self.row, stored, self.manifest)


def encrypted(
    directory: Path, files: Files = FILES, chunk_bytes: int = 1_000, *, compressed: bool = False
) -> Encrypted:
    key = os.urandom(32)
    cipher = AESGCM(key)

    def sealed(plain: bytes) -> bytes:
        nonce = os.urandom(12)
        return nonce + cipher.encrypt(nonce, plain, ADDITIONAL)

    starts = range(0, len(files.log), chunk_bytes)
    plain = [files.log[at : at + chunk_bytes] for at in starts]
    chunks = [*map(sealed, compressed_log(files.log, chunk_bytes) if compressed else plain)]
    indexes = {kind: sealed(data) if data else b"" for kind, data in files.indexes.items()}
    sections = aiven_manifest(Files(b"", indexes))["segmentIndexes"]
    if compressed:
        manifest = compressed_manifest(files, chunk_bytes, [*map(len, chunks)])
    else:
        manifest = aiven_manifest(files)
        manifest["chunkIndex"] |= {
            "originalChunkSize": chunk_bytes,
            "transformedChunkSize": chunk_bytes + NONCE_AND_TAG_BYTES,
        }
    aad = base64.b64encode(ADDITIONAL).decode()
    manifest |= {
        "segmentIndexes": sections,
        "encryption": {"dataKey": data_key_text(key), "aad": aad},
    }
    file = private_file(directory / "pair-1.pem", PEM)
    tier = aiven_files(directory, f'key_pairs = {{"pair-1" = "{file}"}}')
    made = Encrypted(tier, imported(files), manifest, chunks, indexes)
    made.store()
    return made


def test_what_java_encrypted_is_opened(tmp_path: Path) -> None:
    pairs = KeyPairs({"of java": private_file(tmp_path / "key", PEM)})
    additional = base64.b64encode(MADE_IN_JAVA["additional"].encode()).decode()
    cipher = pairs.cipher(f"of java:{MADE_IN_JAVA['data_key']}", additional)
    chunk = base64.b64decode(MADE_IN_JAVA["chunk"])
    assert cipher.opened(chunk) == MADE_IN_JAVA["plain"].encode()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("chunk_bytes", [100, 4_095, 4_096, 1_000_000])
def test_an_encrypted_segment_is_read_as_it_was(
    tmp_path: Path, chunk_bytes: int, compressed: bool
) -> None:
    made = encrypted(tmp_path, chunk_bytes=chunk_bytes, compressed=compressed)
    with closing(build_manager(made.tier.settings)) as rsm:
        assert fetched(rsm, made.row) == FILES.log
        for start, last in [(0, 0), (99, 100), (100, 199), (150, 1_234), (4_095, 4_095)]:
            assert fetched(rsm, made.row, start, last) == FILES.log[start : last + 1]
        for kind in IndexType:
            assert index(rsm, made.row, kind) == FILES.indexes[kind]


def test_empty_and_absent_encrypted_indexes(tmp_path: Path) -> None:
    kept = {**FILES.indexes, IndexType.OFFSET: b""}
    del kept[IndexType.TRANSACTION]
    made = encrypted(tmp_path, replace(FILES, indexes=kept))
    with closing(build_manager(made.tier.settings)) as rsm:
        assert index(rsm, made.row, IndexType.OFFSET) == b""
        assert index(rsm, made.row, IndexType.TIMESTAMP) == FILES.indexes[IndexType.TIMESTAMP]
        with pytest.raises(RemoteResourceNotFoundError):
            index(rsm, made.row, IndexType.TRANSACTION)


def test_a_large_encrypted_chunk_is_sent_in_pieces(tmp_path: Path) -> None:
    made = encrypted(tmp_path, replace(FILES, log=some_bytes(5 * MIB + 1)), 4 * MIB)
    with closing(build_manager(made.tier.settings)) as rsm:
        pieces = list(rsm.fetch_log_segment(made.row, 1))
    assert b"".join(pieces) == some_bytes(5 * MIB + 1)[1:]
    assert max(len(piece) for piece in pieces) <= MIB


def test_changed_bytes_are_named(tmp_path: Path) -> None:
    made = encrypted(tmp_path)
    made.chunks[1] = bytes([made.chunks[1][0] ^ 1]) + made.chunks[1][1:]
    damaged = made.indexes[IndexType.OFFSET]
    made.indexes[IndexType.OFFSET] = damaged[:-1] + bytes([damaged[-1] ^ 1])
    made.store()
    with closing(build_manager(made.tier.settings)) as rsm:
        assert fetched(rsm, made.row, 0, 999) == FILES.log[:1_000]
        with pytest.raises(CorruptSegmentError, match="bytes 1000 to 1999: it was changed"):
            fetched(rsm, made.row, 1_000, 1_001)
        with pytest.raises(CorruptSegmentError, match="indexes: the chunk of bytes 0 to"):
            index(rsm, made.row, IndexType.OFFSET)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"dataKey": data_key_text(bytes(32), "pair-2")}, NotServedError, "pair-2.* has pair-1"),
        ({"dataKey": "no pair"}, NotServedError, "key pair 'no pair'"),
        ({"dataKey": "pair-1:AAAA"}, CorruptSegmentError, "its data key was changed"),
        ({"dataKey": "pair-1:***"}, CorruptSegmentError, "its data key was changed"),
        ({"dataKey": data_key_text(bytes(5))}, CorruptSegmentError, "its data key was changed"),
        ({"dataKey": data_key_text(bytes(32))}, CorruptSegmentError, "bytes 0 to 999: it was"),
        ({"aad": ""}, CorruptSegmentError, "bytes 0 to 999: it was changed"),
        ({"aad": None}, CorruptSegmentError, "not a manifest of version 1"),
    ],
)
def test_a_key_that_opens_nothing_is_named(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    made = encrypted(tmp_path)
    made.manifest["encryption"] |= changes
    made.store()
    with closing(build_manager(made.tier.settings)) as rsm, pytest.raises(error, match=said):
        fetched(rsm, made.row)


@pytest.mark.parametrize(
    ("section_bytes", "said"), [(27, "OFFSET index has 27 bytes"), (66 * MIB, "index has 69206016")]
)
def test_an_encrypted_index_of_a_wrong_size_is_named(
    tmp_path: Path, section_bytes: int, said: str
) -> None:
    made = encrypted(tmp_path)
    made.manifest["segmentIndexes"][AIVEN_NAMES[IndexType.OFFSET]]["size"] = section_bytes
    made.store()
    raises = pytest.raises(CorruptSegmentError, match=said)
    with closing(build_manager(made.tier.settings)) as rsm, raises:
        index(rsm, made.row, IndexType.OFFSET)


def test_encrypted_chunks_too_large_are_refused(tmp_path: Path) -> None:
    made = encrypted(tmp_path)
    made.manifest["chunkIndex"] |= {
        "originalChunkSize": 65 * MIB,
        "transformedChunkSize": 65 * MIB + NONCE_AND_TAG_BYTES,
    }
    made.store()
    raises = pytest.raises(NotServedError, match="1 encrypted chunks of 68157440 bytes")
    with closing(build_manager(made.tier.settings)) as rsm, raises:
        fetched(rsm, made.row)


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (PEM, 0o644, "lets every user read or write it"),
        ("no key", 0o600, "is no private RSA key"),
        (RSA.import_key(PEM).public_key().export_key(), 0o600, "is no private RSA key"),
        (RSA.import_key(PEM).export_key(passphrase="x"), 0o600, "is no private RSA key"),
        (bytes(70_000), 0o600, "has over 65536 bytes"),
        (None, 0, "No such file"),
    ],
)
def test_a_file_without_a_usable_key_stops_the_start(
    tmp_path: Path, content: str | bytes | None, mode: int, said: str
) -> None:
    file = tmp_path / "pair.pem"
    if content is not None:
        private_file(file, content).chmod(mode)
    tier = aiven_files(tmp_path, f'key_pairs = {{a = "{file}"}}')
    with pytest.raises(SystemExit, match=f"key_pairs of location 7: .*pair.pem: .*{said}"):
        build_manager(tier.settings)
