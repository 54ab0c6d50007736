"""Test `scrub --repair --log-dir`: lost logs come back from a broker's disk."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from demos.stage import link_log_dir
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import all_events, all_segments
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata, is_transformed
from services.cli.local_files import files_in
from services.local.seaweedfs import S3Endpoint
from services.rlm.copy.ship import ship
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_backend
from services.rsm.settings import RsmSettings
from services.workflows.scrub import Pace, Scrub, Scrubbed, ScrubPlan
from tests.contract.remote_storage_manager_contract import fetched
from tests.contract.rsm_over_s3 import settings_for
from tests.contract.test_rsm_transformed import ZSTD, encrypting
from tests.harness import served_fixtures
from tests.harness.processes import RlmmProcess
from tests.harness.served import ServedRsm, serving
from tests.harness.ship_stack import BUNDLED, ONE_TRY, bundled_name
from tests.harness.stores import keys_in
from tests.harness.wrapper import Wrapper

pytestmark = pytest.mark.deep
rlmm = served_fixtures.rlmm

NAME = bundled_name("payments", 1)
FOLDER = "payments-1"
HIGH_WATERMARKS = "replication-offset-checkpoint"
KINDS = [kind for kind in IndexType if kind is not IndexType.TRANSACTION]


@dataclass
class ShippedTier:
    """A log of Kafka's in an S3 store, and the broker's directory that it came from."""

    rlmm: RlmmProcess
    rsm: ServedRsm
    store: StorageBackend
    prefix: str
    log_dir: Path
    content: list[tuple[bytes, ...]]

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        return list(all_segments(self.rlmm.client, NAME))

    def keys(self) -> list[str]:
        return list(keys_in(self.store, self.prefix))

    def harm(self, *kinds: str, by: Callable[[StorageBackend, str], None], number: int = 1) -> None:
        id_ = self.segments()[number].remote_log_segment_id.id.hex
        found = [key for key in self.keys() if id_ in key and key.endswith(kinds)]
        assert len(found) == len(kinds)
        for key in found:
            by(self.store, key)

    def local(self, suffix: str) -> Path:
        return self.log_dir / FOLDER / f"{self.segments()[1].start_offset:020}{suffix}"

    def scrubbed(self, rsm: Any = None) -> Scrubbed:
        plan, files = ScrubPlan(uuid4().hex, repairs=True), files_in([self.log_dir])
        parts = (self.rlmm.client, rsm or self.rsm.client, self.rsm.objects, plan)
        pace = Pace(lambda _: None, lambda _: None)
        return Scrub(*parts, pace, local_files=files).run()


def content_of(tier: RemoteStorageManager, rows: list[RemoteLogSegmentMetadata]) -> Any:
    """Read every log, and its indexes as they are stored."""
    return [
        (fetched(tier, row), *(b"".join(tier.fetch_index(row, k, as_stored=True)) for k in KINDS))
        for row in rows
    ]


def lost(store: StorageBackend, key: str) -> None:
    assert store.delete([key]) == {}


def damaged(store: StorageBackend, key: str) -> None:
    content = store.get(key)
    lost(store, key)
    store.put(key, changed(content))


def changed(content: bytes) -> bytes:
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def written(path: Path, content: bytes) -> None:
    """Write a file of the broker, which is a link to one that must not change."""
    path.unlink()
    path.write_bytes(content)


@pytest.fixture
def settings(s3: S3Endpoint) -> RsmSettings:
    return settings_for(s3)


@pytest.fixture
def tier(rlmm: RlmmProcess, settings: RsmSettings, tmp_path: Path) -> Iterator[ShippedTier]:
    log_dir = tmp_path / "logs"
    link_log_dir(BUNDLED / FOLDER, log_dir / FOLDER)
    (log_dir / "meta.properties").symlink_to(BUNDLED / "meta.properties")
    (log_dir / HIGH_WATERMARKS).symlink_to(BUNDLED / HIGH_WATERMARKS)
    # By another RSM, so that the one that repairs has nothing in its caches.
    with serving(settings) as first:
        ship([log_dir], first.client, rlmm.client, ONE_TRY)
        content = content_of(first.client, list(all_segments(rlmm.client, NAME)))
    with serving(settings) as rsm:
        beside, store = rlmm.beside(SEDIMENT_RSM=rsm.address), build_backend(settings)
        yield ShippedTier(beside, rsm, store, settings.prefix, log_dir, content)


def require_repaired(tier: ShippedTier) -> None:
    rows = tier.segments()
    assert content_of(tier.rsm.client, rows) == tier.content
    event = list(all_events(tier.rlmm.client, EventQuery(NAME)))[-1]
    assert event.reason == "copied from the broker's log"
    assert tier.scrubbed().damaged == 0


@pytest.mark.parametrize("by", [lost, damaged])
@pytest.mark.parametrize("kinds", [(".log",), (".log", ".indexes")])
def test_a_log_is_copied_from_the_broker(tier: ShippedTier, kinds: Any, by: Any) -> None:
    def on_disk() -> dict[Path, tuple[int, bytes]]:
        found = (path for path in tier.log_dir.rglob("*") if path.is_file())
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}

    files = on_disk()
    tier.harm(*kinds, by=by)
    done = tier.scrubbed()
    assert ": repaired: copied from the broker's log" in done.repairs[0]
    assert (done.damaged, done.repaired, on_disk()) == (1, 1, files)
    require_repaired(tier)


class TestTransformed:
    @pytest.fixture
    def settings(self, s3: S3Endpoint, tmp_path: Path) -> RsmSettings:
        return encrypting(settings_for(s3), tmp_path, ZSTD)

    def test_a_copy_is_compressed_and_encrypted_again(self, tier: ShippedTier) -> None:
        tier.harm(".log", by=damaged)
        assert tier.scrubbed().repaired == 1
        assert is_transformed(tier.segments()[1].custom_metadata)
        require_repaired(tier)


REFUSED: dict[str, Callable[[ShippedTier], object]] = {
    # A byte differs, there is less, the broker has deleted it, the topic was created again.
    "45.log is not what was copied: it has {size} bytes with crc32c [0-9a-f]{{8}}, copied were "
    "{size} bytes with crc32c [0-9a-f]{{8}}": lambda tier: written(
        tier.local(".log"), changed(tier.content[1][0])
    ),
    "45.log is not what was copied: it has 9 bytes": lambda tier: written(
        tier.local(".log"), tier.content[1][0][:9]
    ),
    "45.log: No such file": lambda tier: tier.local(".log").unlink(),
    "logs: no payments-1 of topic id": lambda tier: written(
        tier.log_dir / FOLDER / "partition.metadata",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n",
    ),
    "45.timeindex is not what was copied": lambda tier: written(
        tier.local(".timeindex"), changed(tier.local(".timeindex").read_bytes())
    ),
    "not repaired: nothing proves [^;]*; bring back an older version of 1:[^;]*$": lambda tier: (
        tier.harm(".manifest", by=damaged)
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_proven_is_not_used(tier: ShippedTier, reason: str) -> None:
    tier.harm(".log", by=damaged)
    tier.harm(".indexes", by=lost)
    REFUSED[reason](tier)
    rows, keys = tier.segments(), tier.keys()
    done = tier.scrubbed()
    assert (done.damaged, done.repaired) == (1, 0)
    assert re.search(reason.format(size=f"{len(tier.content[1][0]):,}"), done.repairs[0])
    assert (tier.segments(), tier.keys()) == (rows, keys)


class DeletesFirst(Wrapper[RemoteStorageManager]):
    """Delete a broker's file just before its copy, after it was compared."""

    path: Path

    def copy_log_segment_data(self, *arguments: Any) -> Any:
        self.path.unlink(missing_ok=True)
        return self.real.copy_log_segment_data(*arguments)


def test_a_file_that_the_broker_deletes_meanwhile_fails_its_segment_alone(
    tier: ShippedTier,
) -> None:
    for number in (1, 2):
        tier.harm(".log", by=damaged, number=number)
    rsm = DeletesFirst(tier.rsm.client)
    rsm.path = tier.local(".log")
    done = tier.scrubbed(rsm)
    assert (done.damaged, done.repaired) == (2, 1)
    assert any(
        f"its log is damaged itself; {rsm.path}: No such file" in line for line in done.repairs
    )


def test_a_repair_that_is_killed_is_made_by_the_next(tier: ShippedTier, tmp_path: Path) -> None:
    assert "add --repair" in tier.rlmm.refusal("scrub", "--log-dir", tier.log_dir)
    assert "no such directory" in tier.rlmm.refusal(
        "scrub", "--repair", "--log-dir", tmp_path / "x"
    )
    tier.harm(".log", by=lost)
    before = tier.segments()
    command = ["scrub", "--repair", "--log-dir", str(tier.log_dir)]
    addresses = {**tier.rlmm.variables, "SEDIMENT_RLMM": tier.rlmm.address}
    killed = subprocess.run(
        [sys.executable, "-m", "services.cli", *command],
        env={**os.environ, **addresses, "SEDIMENT_FAILPOINT": "replacement.copied"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (killed.returncode, tier.segments()) == (-signal.SIGKILL, before)
    done = tier.rlmm.sediment(*command)
    assert done.returncode == 0, done.stderr
    assert "copied from the broker's log" in done.stderr
    assert "Traceback" not in done.stderr
    require_repaired(tier)
