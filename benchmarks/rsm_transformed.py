"""Measure copies and reads that are compressed or encrypted, against those of plain copies.

Plain copies are of random bytes, as in rsm_copy: SeaweedFS compresses what it can by itself.
"""

import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.deployment import Deployment, deployed
from benchmarks.measure import MIB, ROUNDS, Result, mib_per_s, ratio
from benchmarks.segments import CHUNK_BYTES, generated_log, segment_data, segment_metadata
from benchmarks.store import STORE
from services.local.stack import BUCKET
from services.rpc.client.storage import RemoteStorageManagerClient

COPY_BYTES = 256 * MIB
FETCH_BYTES = 64 * MIB
PREFIX = "transformed/"
ZSTD = 'compression = "zstd"\ncompression_level = 3'
AES = "encryption = true"
_WORDS = ["order", "customer", "payment", "shipped", "refund", "warehouse", "parcel", "invoice"]
_OTHER_BYTES = 8 * MIB
"""More than zstd sees at once: it never meets the same bytes again."""


def json_log(size_bytes: int) -> bytes:
    """Return lines of JSON, of which zstd at level 3 leaves about a quarter."""
    return b"".join(json_chunks(size_bytes))


def json_chunks(size_bytes: int) -> Iterator[bytes]:
    """Yield the chunks of such a log."""
    seeded = random.Random(45)
    lines, size = list[bytes](), 0
    while size < _OTHER_BYTES:
        document = {
            "event_id": f"{seeded.getrandbits(128):032x}",
            "timestamp_ms": 1_790_000_000_000 + size,
            "customer": f"customer-{seeded.randrange(50_000)}",
            "type": seeded.choice(_WORDS),
            "amount": round(seeded.uniform(1, 900), 4),
            "currency": seeded.choice(["EUR", "USD", "JPY"]),
            "text": " ".join(seeded.choices(_WORDS, k=6)),
        }
        lines.append(json.dumps(document).encode() + b"\n")
        size += len(lines[-1])
    once, left_bytes = b"".join(lines), size_bytes
    while left_bytes:
        for at in range(0, min(left_bytes, len(once)), CHUNK_BYTES):
            yield once[at : min(at + CHUNK_BYTES, left_bytes)]
        left_bytes -= min(left_bytes, len(once))


@dataclass(frozen=True)
class _Both:
    """A plain RSM, and one that transforms what it copies."""

    plain: RemoteStorageManagerClient
    plain_pid: int
    other: RemoteStorageManagerClient
    other_pid: int
    services: Deployment

    def stored_bytes(self) -> int:
        """Return what the objects below the transforming RSM's prefix take."""
        listed = self.services.s3_client().list_objects(BUCKET, prefix=PREFIX, recursive=True)
        return sum(each.size or 0 for each in listed if str(each.object_name).endswith(".log"))

    def compared(
        self,
        name: str,
        what: str,
        mib_per_s_of: Callable[[RemoteStorageManagerClient], float],
        conditions: Mapping[str, object],
    ) -> Result:
        """Measure `what` at the transforming RSM against the same at the plain one."""
        return ratio(
            name,
            ROUNDS,
            (f"{what}, MiB/s", lambda: mib_per_s_of(self.other)),
            ("the same, plain, MiB/s", lambda: mib_per_s_of(self.plain)),
            {"rsm": self.other_pid},
            conditions,
            {"rsm": self.plain_pid},
        )


@contextmanager
def both(properties: str) -> Iterator[_Both]:
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name, deployed() as services:
        ring = Path(name) / "keys"
        ring.mkdir(mode=0o750)
        for key, content in (("first", os.urandom(32)), ("current", b"first")):
            (ring / key).write_bytes(content)
            (ring / key).chmod(0o640)
        s3 = services.stack.s3.endpoint
        file = Path(name) / "locations.toml"
        file.write_text(
            f'[[location]]\nid = 1\nbackend = "s3"\nendpoint = "{s3.endpoint}"\n'
            f'region = "{s3.region}"\nbucket = "{BUCKET}"\nprefix = "{PREFIX}"\n{properties}\n'
            f'[keys]\ndirectory = "{ring}"\n'
        )
        changes = {
            "RSM_PREFIX": PREFIX,
            "RSM_LOCATIONS_FILE": str(file),
            "RSM_DEPLOYMENT_ID": "transformed",
        }
        # Both reach the store without the proxy that counts the deployment's own requests.
        with (
            services.another_rsm({"RSM_PREFIX": "plain/"}) as plain,
            services.another_rsm(changes) as other,
        ):
            yield _Both(*plain, *other, services)


def _copy(name: str, properties: str) -> Result:
    text = json_log(COPY_BYTES) if properties == ZSTD else b""
    with both(properties) as rsms:
        stored = list[int]()

        def copy(rsm: RemoteStorageManagerClient) -> float:
            metadata = segment_metadata(COPY_BYTES)
            log = _chunks(text) if text and rsm is rsms.other else generated_log(COPY_BYTES)
            data = segment_data(COPY_BYTES, log)
            speed = mib_per_s(COPY_BYTES, lambda: rsm.copy_log_segment_data(metadata, data))
            stored.append(rsms.stored_bytes())
            rsm.delete_log_segment_data(metadata)
            return speed

        for rsm in (rsms.plain, rsms.other):
            copy(rsm)
        conditions = {"log_bytes": COPY_BYTES, "stored_bytes": max(stored), "store": STORE}
        return rsms.compared(name, f"CopyLogSegmentData, {_of(properties)}", copy, conditions)


def _fetch(name: str, properties: str) -> Result:
    with both(properties) as rsms:
        log = _chunks(json_log(FETCH_BYTES)) if properties == ZSTD else generated_log(FETCH_BYTES)
        segments = {}
        for rsm, sent in ((rsms.plain, generated_log(FETCH_BYTES)), (rsms.other, log)):
            metadata = segment_metadata(FETCH_BYTES)
            custom = rsm.copy_log_segment_data(metadata, segment_data(FETCH_BYTES, sent))
            segments[rsm] = replace(metadata, custom_metadata=custom)

        def fetch(rsm: RemoteStorageManagerClient) -> float:
            def received() -> None:
                size = sum(map(len, rsm.fetch_log_segment(segments[rsm], 0, FETCH_BYTES - 1)))
                if size != FETCH_BYTES:
                    raise RuntimeError(f"{size} of {FETCH_BYTES} bytes came")

            return mib_per_s(FETCH_BYTES, received)

        for rsm in segments:
            fetch(rsm)
        stored_bytes = rsms.stored_bytes()
        conditions = {"range_bytes": FETCH_BYTES, "stored_bytes": stored_bytes, "store": STORE}
        return rsms.compared(name, f"FetchLogSegment, {_of(properties)}", fetch, conditions)


def _chunks(log: bytes) -> Iterator[bytes]:
    return (log[at : at + CHUNK_BYTES] for at in range(0, len(log), CHUNK_BYTES))


def _of(properties: str) -> str:
    return "zstd" if properties == ZSTD else "AES-256-GCM"


def run_zstd_copy() -> Result:
    return _copy("rsm_zstd_copy", ZSTD)


def run_zstd_fetch() -> Result:
    return _fetch("rsm_zstd_fetch", ZSTD)


def run_aes_copy() -> Result:
    return _copy("rsm_aes_copy", AES)


def run_aes_fetch() -> Result:
    return _fetch("rsm_aes_fetch", AES)
