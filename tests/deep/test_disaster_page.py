"""Lose a bucket's objects, a database or a disk, and follow docs/run/disasters.md to the end."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import pytest

from hatch_build import ROOT
from services.api.segments import RemoteLogSegmentMetadata
from services.common.client_security import PLAINTEXT
from services.local.postgres import wheel
from services.local.seaweedfs import SeaweedFS
from services.local.stack import ServiceProcess, rlm_settings
from services.rlmm.database import schema
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from tests.harness.eventually import eventually
from tests.harness.local_servers import DatabaseServer
from tests.harness.own_servers import own_postgres, own_s3
from tests.harness.ship_stack import lose_rolled_segments, read
from tests.harness.synthetic_log import make_log_dir, roll_segment
from tests.harness.world import FINISHED, World, running_world

__all__ = ["own_postgres", "own_s3"]
pytestmark = pytest.mark.deep

PAGE = (ROOT / "docs/run/disasters.md").read_text()
PARTITIONS, SEGMENTS, SEGMENT_BYTES = 3, 4, 256 * 1024


def blocks(chapter: str) -> list[str]:
    """Return the blocks of commands of a chapter, in order."""
    (text,) = re.findall(
        rf"^## {re.escape(chapter)}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
    return [
        str(block) for block in re.findall(r"^ *```sh\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    ]


def of_libpq(url: str) -> str:
    """Return the URL as PostgreSQL's own programs take it, and Sediment's commands too."""
    return url.replace("postgresql+psycopg:", "postgresql:")


@dataclass
class Site:
    """A deployment, the shell of its operator, and how long each chapter has taken."""

    world: World
    rlm: ServiceProcess
    postgres: DatabaseServer
    directory: Path
    bytes_of: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def run(self, block: str) -> str:
        """Run a block of the page; each command must succeed."""
        environment = {
            **os.environ,
            "PATH": os.pathsep.join(
                [
                    str(Path(sys.executable).parent),
                    str(wheel() / "pginstall" / "bin"),
                    os.environ["PATH"],
                ]
            ),
            "SEDIMENT_RSM": self.world.rsm.address,
            "SEDIMENT_RLMM": self.world.rlmm.address,
            "SEDIMENT_RLM": self.rlm.address,
            "RLMM_DATABASE_URL": of_libpq(self.world.database_url),
            "SERVER_URL": of_libpq(self.postgres.url("postgres")),
        }
        done = subprocess.run(
            ["bash", "-e", "-u", "-o", "pipefail", "-c", block],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def roll(self) -> None:
        """Let the broker write and roll more segments."""
        for folder in self.world.log_dir.glob("*-*"):
            base_offset = int(max(folder.glob("*.log")).stem)
            for _ in range(SEGMENTS):
                base_offset = roll_segment(folder, base_offset, SEGMENT_BYTES)

    def remember(self) -> None:
        """Keep what the local log has, which all readers must get from the tier later."""
        for name, segments in self.world.local_segments().items():
            for each in segments:
                self.bytes_of[name.partition, each.base_offset] = each.log_path.read_bytes()

    def wait_until_copied(self) -> None:
        eventually(lambda: len(self._finished()) == len(self.bytes_of), 120_000)

    def _finished(self) -> list[RemoteLogSegmentMetadata]:
        return [row for row in self.world.rows() if row.state is FINISHED]

    def assert_served(self) -> None:
        """Assert that the tier has every remembered byte."""
        with self.world.storage() as rsm:
            stored = {
                (row.topic_id_partition.partition, row.start_offset): b"".join(
                    rsm.fetch_log_segment(row, 0)
                )
                for row in self._finished()
            }
        assert stored == self.bytes_of

    def objects(self) -> dict[str, bytes]:
        """Read the whole bucket, as a snapshot of it would have it."""
        client, bucket = self.world.s3.client(), self.world.bucket
        found = {}
        for key in [str(o.object_name) for o in client.list_objects(bucket, recursive=True)]:
            response = client.get_object(bucket, key)
            found[key] = response.read()
            response.close()
            response.release_conn()
        return found

    def put(self, objects: dict[str, bytes]) -> None:
        client = self.world.s3.client()
        for key, content in objects.items():
            client.put_object(self.world.bucket, key, BytesIO(content), len(content))

    def delete(self, *keys: str) -> None:
        for key in keys:
            self.world.s3.client().remove_object(self.world.bucket, key)

    def dump(self) -> None:
        self.run('pg_dump --format custom --file tier.dump "$RLMM_DATABASE_URL"')


@pytest.fixture
def site(tmp_path: Path, own_postgres: DatabaseServer, own_s3: SeaweedFS) -> Iterator[Site]:
    """Provide a deployment that has copied a log of three partitions."""
    own_postgres.drop_database("tier")
    url = own_postgres.create_database("tier")
    schema.upgrade(url)
    bucket = f"tier-{tmp_path.name.replace('_', '-')[-40:].strip('-').lower()}"
    own_s3.endpoint.ensure_bucket(bucket)
    log_dir = tmp_path / "log"
    make_log_dir(log_dir, PARTITIONS, SEGMENTS, SEGMENT_BYTES)
    with running_world(tmp_path, url, own_s3.endpoint, bucket, log_dir) as world:
        settings = rlm_settings(
            world.rsm.address, world.rlmm.address, [log_dir], 300, tmp_path / "cache"
        )
        rlm = ServiceProcess("rlm", settings, tmp_path / "rlm")
        rlm.start()
        try:
            site = Site(world, rlm, own_postgres, tmp_path)
            site.remember()
            site.wait_until_copied()
            yield site
        finally:
            rlm.kill()


@pytest.fixture
def timed(record_property: Callable[[str, object], None]) -> Iterator[Callable[[], None]]:
    """Provide a clock that is started at the alarm; it prints the seconds to serving again."""
    started: list[float] = []
    yield lambda: started.append(time.monotonic())
    at_s = min(started, default=time.monotonic())
    record_property("from the alarm to serving again, s", f"{time.monotonic() - at_s:.1f}")


def test_objects_that_were_deleted_by_hand_are_put_back(
    site: Site, timed: Callable[[], None]
) -> None:
    name_missing, repair, compare = blocks("Objects were deleted by hand")
    before = site.objects()
    logs = sorted(key for key in before if key.endswith(".log"))
    indexes = sorted(key for key in before if key.endswith(".indexes"))
    assert logs
    assert indexes
    site.delete(logs[0], logs[-1], indexes[1])
    timed()
    shown = site.run(name_missing)
    assert "MISSING_OBJECTS" in shown
    assert logs[0] in shown
    assert logs[-1] in shown
    site.run(repair)
    missing = before.keys() - site.objects().keys()
    site.put({key: before[key] for key in missing if key.endswith(".log")})
    site.run(compare)
    site.assert_served()


def recover(site: Site, restore: str, rebuild: Sequence[str], started: str) -> None:
    """Run a chapter's commands, the first of them while neither RLM nor RLMM runs."""
    site.rlm.stop()
    site.world.rlmm.kill()
    site.run(restore)
    site.world.rlmm.start()
    for command in rebuild:
        site.run(command)
    site.rlm.start()
    site.run(started)


def test_a_bucket_that_was_rolled_back_has_its_database_beside_it_again(
    site: Site, timed: Callable[[], None]
) -> None:
    restore, rebuild, started = blocks("The bucket was rolled back")
    site.dump()
    then = site.objects()
    site.roll()
    site.remember()
    site.wait_until_copied()
    site.delete(*(site.objects().keys() - then.keys()))
    timed()
    recover(site, restore, [rebuild], started)
    site.wait_until_copied()
    site.assert_served()


def test_a_database_that_is_gone_is_filled_from_the_bucket(
    site: Site, timed: Callable[[], None]
) -> None:
    create, rebuild, confirm, started = blocks("The database is gone")
    site.world.set_retention({"retention.ms": "-1", "sediment.owner": "billing"})
    site.run('sediment holds set --all --name audit --reason "an audit runs"')
    site.run("sediment db maintain")
    site.postgres.drop_database("tier")
    timed()
    recover(site, create, [rebuild, confirm], started)
    site.assert_served()
    assert "billing" in site.run("sediment topics show bench")
    assert "an audit runs" in site.run("sediment holds")


def test_a_database_of_last_night_lacks_nothing_that_the_bucket_has(
    site: Site, timed: Callable[[], None]
) -> None:
    restore, rebuild, started = blocks("The database is of last night")
    site.dump()
    site.roll()
    site.remember()
    site.wait_until_copied()
    site.postgres.drop_database("tier")
    timed()
    recover(site, restore, [rebuild], started)
    site.assert_served()


def test_an_rlm_without_its_disk_reads_everything_anew(
    site: Site, timed: Callable[[], None]
) -> None:
    (started,) = blocks("An RLM's disk is lost")
    expected = {
        name: b"".join(
            site.bytes_of[key] for key in sorted(site.bytes_of) if key[0] == name.partition
        )
        for name in site.world.local_segments()
    }
    lose_rolled_segments(site.world.log_dir)
    site.rlm.kill()
    shutil.rmtree(site.directory / "cache")
    timed()
    site.rlm.start()
    site.run(started)
    with open_channel(site.rlm.address, PLAINTEXT) as channel:
        rlm = RemoteLogManagerClient(channel, site.rlm.address)
        assert {name: read(rlm, 0, name) for name in expected} == expected
