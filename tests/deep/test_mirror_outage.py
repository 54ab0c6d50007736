"""Stop the S3 server of a location whose mirror is on another server, and start it again."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.local.seaweedfs import SeaweedFS
from services.local.stack import rsm_settings
from tests.contract.remote_storage_manager_contract import Files, copied, some_bytes
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.mirrors import mirrored_settings
from tests.harness.own_servers import own_s3
from tests.harness.sediment_command import sediment
from tests.harness.synthetic_log import make_log_dir, roll_segment
from tests.harness.world import World, running_world

__all__ = ["own_s3"]
pytestmark = pytest.mark.deep

BUCKET = "mirrored"
SEGMENT_BYTES = 256 * 1024
Content = dict[tuple[RemoteLogSegmentMetadata, str], bytes]


@dataclass
class Mirrored:
    """A tier whose location has a mirror, and their servers."""

    world: World
    first: SeaweedFS
    mirror: SeaweedFS
    environment: dict[str, str]

    def sediment(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return sediment(*arguments, environment=self.environment)

    def copy_to_mirror(self) -> dict[str, Any]:
        done = self.sediment("copy", "--mirror", "-o", "json")
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def content(self) -> Content:
        """Read every log and index of the tier."""
        with self.world.storage() as rsm:
            return {
                (row, name): b"".join(pieces)
                for row in self.world.rows()
                for name, pieces in (
                    ("LOG", rsm.fetch_log_segment(row, 0)),
                    *((kind.name, rsm.fetch_index(row, kind)) for kind in _indexes_of(row)),
                )
            }


def _indexes_of(row: RemoteLogSegmentMetadata) -> list[IndexType]:
    return [
        kind for kind in IndexType if kind is not IndexType.TRANSACTION or not row.txn_idx_empty
    ]


@pytest.fixture
def mirrored(
    tmp_path: Path, server_directory: Path, database_url: str, own_s3: SeaweedFS
) -> Iterator[Mirrored]:
    log_dir = tmp_path / "log"
    make_log_dir(log_dir, 2, 3, SEGMENT_BYTES)
    with SeaweedFS(server_directory / "s3-mirror") as mirror:
        settings = mirrored_settings(own_s3.endpoint, mirror.endpoint, BUCKET, tmp_path)
        with running_world(
            tmp_path, database_url, own_s3.endpoint, BUCKET, log_dir, settings
        ) as world:
            environment = {
                **rsm_settings(own_s3.endpoint, BUCKET, ""),
                **settings,
                "SEDIMENT_RSM": world.rsm.address,
                "SEDIMENT_RLMM": world.rlmm.address,
            }
            yield Mirrored(world, own_s3, mirror, environment)


def test_a_tier_is_read_from_its_mirror_while_its_first_store_is_away(mirrored: Mirrored) -> None:
    world = mirrored.world
    world.ship()
    assert mirrored.copy_to_mirror()["copied"] == len(world.rows())
    everything = mirrored.content()
    mirrored.first.kill()

    def is_served_by_the_mirror() -> None:
        done = mirrored.sediment("status")
        assert "location 1" in done.stdout
        assert "reads are served by its mirror, copies and deletions wait" in done.stdout
        assert done.returncode == 2

    eventually_holds(is_served_by_the_mirror)
    assert mirrored.content() == everything
    with (
        world.storage() as rsm,
        pytest.raises(RetriableRemoteStorageError, match=mirrored.first.endpoint.endpoint),
    ):
        copied(rsm, Files(some_bytes(1_000)))

    for folder in world.log_dir.glob("*-*"):
        roll_segment(folder, int(max(folder.glob("*.log")).stem), SEGMENT_BYTES)
    with world.start_shipping() as waiting:
        mirrored.first.start()
        _, errors = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, errors
    eventually(lambda: "served by its mirror" not in mirrored.sediment("status").stdout)
    mirrored.mirror.kill()
    now = mirrored.content()
    assert len(now) > len(everything)
    assert everything.items() <= now.items()
    world.assert_all_shipped()
