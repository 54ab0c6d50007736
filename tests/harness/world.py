"""Provide a deployment that a test can break: RSM and RLMM as processes, and `sediment ship`.

What must hold after any accident and one more `ship` is said once, in `assert_all_shipped`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from demos.stage import link_log_dir
from services.api.ids import TopicIdPartition, random_uuid, uuid_from_text, uuid_to_text
from services.api.remote_log_metadata_manager import all_partitions, all_segments
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.common.client_security import PLAINTEXT, ClientSecurity
from services.local.seaweedfs import S3Endpoint
from services.local.stack import ServiceProcess, rlmm_settings, rsm_settings, settings_of
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import LocalSegment, list_segments
from services.rlmm.database.engine import create_database_engine
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient
from tests.harness.databases import copy_lease_ends
from tests.harness.invariants import assert_invariants
from tests.harness.sediment_command import check_printed

BUNDLED_LOG = Path(__file__).parent.parent / "data" / "kafka-log"
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
# Large enough to be interrupted midway, small enough to ship in a second or two.
SMALL_TOPICS = ("clicks", "profiles")
SMALLEST_PART_BYTES = 5 * 1024 * 1024
COPY_LEASE_MS = 3_000


def linked_log(directory: Path, topics: tuple[str, ...] = SMALL_TOPICS) -> Path:
    """Copy some topics of the bundled log as links."""
    log_dir = directory / "log"
    link_log_dir(BUNDLED_LOG, log_dir)
    for folder in log_dir.iterdir():
        if folder.is_dir() and folder.name.rpartition("-")[0] not in topics:
            shutil.rmtree(folder)
    return log_dir


def name_topics_anew(log_dir: Path) -> None:
    """Give every topic a new id, so that the tier sees another log with the same bytes."""
    ids: dict[str, UUID] = {}
    for path in log_dir.glob("*/partition.metadata"):
        topic = path.parent.name.rpartition("-")[0]
        ids.setdefault(topic, random_uuid())
        path.unlink()
        path.write_text(f"version: 0\ntopic_id: {uuid_to_text(ids[topic])}")


@dataclass
class World:
    """Services on stores of their own, and a log to ship."""

    rsm: ServiceProcess
    rlmm: ServiceProcess
    s3: S3Endpoint
    bucket: str
    database_url: str
    log_dir: Path
    security: ClientSecurity = PLAINTEXT

    def ship_command(self, *options: str) -> list[str]:
        addresses = ["--rsm", self.rsm.address, "--rlmm", self.rlmm.address]
        command = [sys.executable, "-m", "services.cli", "ship", str(self.log_dir), *addresses]
        # So that the run after a killed one does not wait for long.
        return [*command, "-o", "json", "--copy-lease", f"{COPY_LEASE_MS}ms", *options]

    def start_shipping(self, failpoint: str | None = None) -> "subprocess.Popen[str]":
        environment = dict(os.environ)
        if failpoint:
            environment["SEDIMENT_FAILPOINT"] = failpoint
        return subprocess.Popen(
            self.ship_command(),
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def ship(self) -> dict[str, Any]:
        """Ship to the end, assert that everything succeeded, and return the report."""
        with self.start_shipping() as process:
            output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        check_printed(("ship", "-o", "json"), output)
        report: dict[str, Any] = json.loads(output)
        return report

    @contextmanager
    def metadata(self) -> Iterator[RemoteLogMetadataManagerClient]:
        with open_channel(self.rlmm.address, self.security) as channel:
            yield RemoteLogMetadataManagerClient(channel, self.rlmm.address)

    @contextmanager
    def storage(self) -> Iterator[RemoteStorageManagerClient]:
        with open_channel(self.rsm.address, self.security) as channel:
            yield RemoteStorageManagerClient(channel, self.rsm.address)

    def local_segments(self) -> dict[TopicIdPartition, list[LocalSegment]]:
        """Return the rolled segments, all of which can be shipped."""
        found = find_partitions([self.log_dir]).partitions
        return {
            name: [s for s in list_segments(partition.path) if s.is_rolled]
            for name, partition in found.items()
        }

    def rows(self) -> list[RemoteLogSegmentMetadata]:
        """Return RLMM's list for the partitions of this log, in any state."""
        ours = self.local_segments()
        with self.metadata() as rlmm:
            known = [s.topic_id_partition for s in all_partitions(rlmm)]
            return [row for name in known if name in ours for row in all_segments(rlmm, name)]

    def copy_lease_ends(self) -> dict[str, datetime]:
        """Return the lease ends of the active copies of this log, by segment id.

        Reads the database, which changes nothing, even if copies finish meanwhile.
        """
        engine = create_database_engine(self.database_url)
        try:
            ends = copy_lease_ends(engine, list(self.local_segments()))
        finally:
            engine.dispose()
        return ends

    def set_retention(self, settings: Mapping[str, str]) -> None:
        """Put the same settings for every topic of this log."""
        with self.metadata() as rlmm:
            for topic_id in {name.topic_id for name in self.local_segments()}:
                rlmm.put_topic_config(topic_id, settings, now=True)

    def sediment(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command against this world's RLMM."""
        done = subprocess.run(
            [sys.executable, "-m", "services.cli", *arguments],
            env={**os.environ, "SEDIMENT_RLMM": self.rlmm.address},
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
        check_printed(arguments, done.stdout)
        return done

    def retention_due(self) -> dict[UUID, dict[str, Any]]:
        """Return the announcement of a dry run for every partition of this log, by segment id."""
        names = [
            f"{uuid_to_text(name.topic_id)}:{name.topic}-{name.partition}"
            for name in self.local_segments()
        ]
        done = self.sediment("retention", *names, "-o", "json")
        assert done.returncode == 0, done.stderr
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        return {
            uuid_from_text(deletion["segment_id"], "segment_id"): deletion
            for answer in answers
            for deletion in answer["deletions"]
        }

    def object_keys(self) -> list[str]:
        """Return the keys of all objects of this log's topics."""
        ids = {name.topic_id.hex for name in self.local_segments()}
        listed = self.s3.client().list_objects(self.bucket, recursive=True)
        keys = [str(item.object_name) for item in listed]
        return [key for key in keys if re.sub("-", "", key.split("/")[0]) in ids]

    def assert_invariants(self) -> None:
        """Assert the invariants of this log, with no active change."""
        with self.metadata() as rlmm:
            assert_invariants(rlmm, self.local_segments())

    def assert_all_shipped(self) -> None:
        """Assert that every rolled segment is FINISHED once, and its bytes can be read.

        There must be no other row, no object without a row, and no broken invariant.
        """
        self.assert_invariants()
        expected = {
            (name, segment.base_offset, segment.end_offset): segment
            for name, segments in self.local_segments().items()
            for segment in segments
        }
        rows = self.rows()
        assert {row.state for row in rows} == {FINISHED}
        places = [(row.topic_id_partition, row.start_offset, row.end_offset) for row in rows]
        assert sorted(places) == sorted(expected)
        with self.storage() as rsm:
            for row, place in zip(rows, places, strict=True):
                data = b"".join(rsm.fetch_log_segment(row, 0))
                assert data == expected[place].log_path.read_bytes()
        named = {str(row.remote_log_segment_id.id) for row in rows}
        by_segment = [key for key in self.object_keys() if _segment_of(key) in named]
        assert len(by_segment) == 3 * len(rows)
        assert sorted(by_segment) == sorted(self.object_keys())


def _segment_of(key: str) -> str:
    """Return the segment id in an object's key, as a hyphenated UUID."""
    name = key.rpartition("/")[2]
    match = re.match(r"\d{20}-([0-9a-f-]{32,36})\.", name)
    assert match is not None, key
    return str(UUID(match[1]))


@contextmanager
def running_world(
    directory: Path,
    database_url: str,
    s3: S3Endpoint,
    bucket: str,
    log_dir: Path,
    further: Mapping[str, str] | None = None,
    security: ClientSecurity = PLAINTEXT,
) -> Iterator[World]:
    """Start RSM and RLMM in parallel and stop them at the end.

    `further` are settings of both; with `security` the tests connect.
    """
    small_parts = {"RSM_PART_SIZE_BYTES": str(SMALLEST_PART_BYTES)}
    settings = {**rsm_settings(s3, bucket, ""), **small_parts, **settings_of("rsm", further or {})}
    rsm = ServiceProcess("rsm", settings, directory / "rsm")
    settings_of_rlmm = {**rlmm_settings(database_url), **settings_of("rlmm", further or {})}
    rlmm = ServiceProcess("rlmm", settings_of_rlmm, directory / "rlmm")
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda service: service.start(), [rsm, rlmm]))
        yield World(rsm, rlmm, s3, bucket, database_url, log_dir, security)
    finally:
        rsm.kill()
        rlmm.kill()
