"""A topic that a real broker tiered with LocalTieredStorage comes, is adopted, and leaves again."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from benchmarks.brokers import BROKER, TIERED
from benchmarks.local_tiered_storage import local_tiered_storage_settings
from demos.kafka_broker import KafkaBroker
from demos.kafka_client import Cluster, Topic
from services.api.imported_segments import is_imported
from services.api.remote_log_metadata_manager import all_partitions, all_segments
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.rsm.factory import build_manager
from services.rsm.leaving import LocalTieredStorageDirectory
from services.rsm.manager import ObjectRemoteStorageManager
from services.workflows.adoption import Adoption, delete_sources
from services.workflows.copy_segments import CopyPlan, SegmentCopy
from services.workflows.scrub import Pace
from tests.contract.remote_storage_manager_contract import fetched, index
from tests.harness.databases import OwnRlmm
from tests.harness.eventually import eventually
from tests.harness.foreign_tiers import FOREIGN_ID, LOCAL_SUFFIXES, ForeignTier, local_tier
from tests.harness.kafka_broker import kafka_broker
from tests.harness.sediment_command import sediment
from tests.harness.served import served_manager

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

SEGMENT_BYTES = 1024 * 1024
SEGMENTS = 5
PACE = Pace(lambda _: None, lambda _: None)


@pytest.fixture
def tiering(tmp_path: Path) -> Iterator[KafkaBroker]:
    settings = {**BROKER, **local_tiered_storage_settings(tmp_path / "theirs")}
    with kafka_broker(tmp_path / "broker", settings) as broker:
        yield broker


def tiered_files(directory: Path) -> dict[str, bytes]:
    """Return the content of each file by its name, which has the segment's id."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def produce(broker: KafkaBroker, name: str) -> None:
    cluster = Cluster(broker.bootstrap_servers)
    cluster.create(Topic(name, 2, SEGMENT_BYTES, TIERED))
    producer = cluster.producer()
    for number in range(2 * SEGMENTS * SEGMENT_BYTES // 10_000):
        producer.produce(name, os.urandom(10_000), partition=number % 2)
        producer.poll(0)
    producer.flush()


def read(
    rsm: ObjectRemoteStorageManager, theirs: ForeignTier, row: RemoteLogSegmentMetadata
) -> dict[str, bytes]:
    """Read a segment's files through RSM, by the names that LocalTieredStorage gives them."""
    stem = theirs.stem(row)
    files = {f"{stem}.log": fetched(rsm, row)}
    kinds = [kind for kind in IndexType if kind is not IndexType.TRANSACTION]
    return files | {f"{stem}.{LOCAL_SUFFIXES[kind]}": index(rsm, row, kind) for kind in kinds}


def test_every_byte_is_the_same_on_the_way_in_and_out(
    tiering: KafkaBroker, rlmm: OwnRlmm, tmp_path: Path
) -> None:
    name = f"tiered-{uuid4().hex[:8]}"
    produce(tiering, name)
    storage = tmp_path / "theirs"
    logs = 2 * (SEGMENTS - 1)
    eventually(lambda: len([*storage.rglob("*.log")]) >= logs, deadline_ms=120_000)

    def rows() -> list[RemoteLogSegmentMetadata]:
        with served_manager(rlmm) as (_, address):
            done = sediment(
                *("--rlmm", address, "-o", "json", "metadata", "import", "--location", FOREIGN_ID),
                *("--bootstrap-server", tiering.bootstrap_servers, "--topic", name),
            )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not any(json.loads(done.stdout)["dropped"].values())
        return rows_of(rlmm)

    eventually(lambda: len(rows()) >= logs, deadline_ms=60_000)
    tiering.stop()
    before, theirs = tiered_files(storage), local_tier(tmp_path, "read_only = false")
    with closing(build_manager(theirs.settings)) as rsm:
        imported = rows_of(rlmm)
        assert {row.topic_id_partition.partition for row in imported} == {0, 1}
        assert all(is_imported(row.custom_metadata) for row in imported)
        through = dict(each for row in imported for each in read(rsm, theirs, row).items())
        assert through == {key: before[key] for key in through}
        assert len(through) == 5 * len(imported)
        done = SegmentCopy(rlmm, rsm, Adoption(rlmm, rsm, "r"), CopyPlan("r"), PACE).run()
        assert (done.copied, done.failed) == (len(imported), 0), done.reasons
        assert set(delete_sources(rlmm, rsm, FOREIGN_ID, {})) == {None}
        adopted = rows_of(rlmm)
        assert not any(is_imported(row.custom_metadata) for row in adopted)
        assert dict(e for row in adopted for e in read(rsm, theirs, row).items()) == through
        leaving = tmp_path / "leaving"
        leaving.mkdir()
        target = LocalTieredStorageDirectory(leaving)
        done = SegmentCopy(rlmm, rsm, target, CopyPlan("out"), PACE).run()
        assert (done.copied, done.failed) == (len(imported), 0), done.reasons
        assert tiered_files(leaving) == through


def rows_of(rlmm: OwnRlmm) -> list[RemoteLogSegmentMetadata]:
    finished = (RemoteLogSegmentState.COPY_SEGMENT_FINISHED,)
    names = [each.topic_id_partition for each in all_partitions(rlmm)]
    return [row for tp in names for row in all_segments(rlmm, tp, states=finished)]
