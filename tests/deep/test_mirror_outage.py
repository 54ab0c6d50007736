"""Stop the S3 server of a location whose mirror is on another server, and start it again."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.local.seaweedfs import SeaweedFS
from services.local.stack import own_environment, rsm_settings, settings_of
from tests.contract.remote_storage_manager_contract import Files, copied, some_bytes
from tests.deep.test_disaster_page import blocks
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.local_servers import remove_bucket
from tests.harness.mirrors import mirrored_settings
from tests.harness.own_servers import own_s3
from tests.harness.sediment_command import sediment
from tests.harness.synthetic_log import make_log_dir, roll_segment
from tests.harness.world import World, running_world

__all__ = ["own_s3"]
pytestmark = pytest.mark.deep

SEGMENT_BYTES = 256 * 1024
Content = dict[tuple[RemoteLogSegmentMetadata, str], bytes]


@dataclass
class Mirrored:
    """A tier whose location has a mirror, and their servers."""

    world: World
    first: SeaweedFS
    mirror: SeaweedFS
    directory: Path
    environment: dict[str, str]

    def run(self, block: str) -> str:
        """Run a block of docs/run/disasters.md; each command must succeed."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-e", "-u", "-o", "pipefail", "-c", block],
            env=own_environment({**self.environment, "PATH": path}),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def restart_rsm(self, settings: Mapping[str, str]) -> None:
        """Restart RSM with changed settings, which commands then have, too."""
        self.world.rsm.stop()
        self.environment |= settings
        self.world.rsm.start(settings_of("rsm", self.environment))

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
    bucket = f"mirrored-{uuid4().hex}"
    with SeaweedFS(server_directory / bucket) as mirror:
        settings = mirrored_settings(own_s3.endpoint, mirror.endpoint, bucket, tmp_path)
        with running_world(
            tmp_path, database_url, own_s3.endpoint, bucket, log_dir, settings
        ) as world:
            environment = {
                **rsm_settings(own_s3.endpoint, bucket, ""),
                **settings,
                "SEDIMENT_RSM": world.rsm.address,
                "SEDIMENT_RLMM": world.rlmm.address,
            }
            yield Mirrored(world, own_s3, mirror, tmp_path, environment)


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


def test_a_mirror_takes_the_place_of_a_bucket_that_is_gone(mirrored: Mirrored) -> None:
    away, compare, fill = blocks("The bucket is gone")
    world, mirror, bucket = mirrored.world, mirrored.mirror.endpoint, mirrored.world.bucket
    world.ship()
    mirrored.copy_to_mirror()
    everything = mirrored.content()
    mirrored.first.kill()
    eventually(lambda: "reads are served by its mirror" in mirrored.run(away))
    without = mirrored.directory / "without-mirror.toml"
    without.touch()
    mirrored.restart_rsm({**rsm_settings(mirror, bucket, ""), "RSM_LOCATIONS_FILE": str(without)})
    world.s3 = mirror
    mirrored.run(compare)
    assert mirrored.content() == everything
    for folder in world.log_dir.glob("*-*"):
        roll_segment(folder, int(max(folder.glob("*.log")).stem), SEGMENT_BYTES)
    world.ship()
    world.assert_all_shipped()
    mirrored.first.start()
    other = mirrored.first.endpoint
    remove_bucket(other, bucket)
    mirrored.restart_rsm(mirrored_settings(mirror, other, bucket, mirrored.directory, 3))
    mirrored.run(fill)
    assert mirrored.copy_to_mirror()["copied"] == 0
