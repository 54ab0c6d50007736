"""Kill the database's primary under load; its standby takes over (docs/run/database.md)."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_segments
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.watches import WatchedPartition
from services.local.process import LOOPBACK
from services.local.seaweedfs import SeaweedFS
from services.rlmm.database import schema
from tests.contract.rlmm.segments import FINISHED, add, id_of, move, segment
from tests.harness.eventually import Background, eventually
from tests.harness.own_servers import own_s3
from tests.harness.postgres_servers import Replicated, replicated
from tests.harness.processes import running_rlmm
from tests.harness.proxy import TcpProxy
from tests.harness.synthetic_log import make_log_dir, roll_segment
from tests.harness.world import World, running_world

__all__ = ["own_s3"]
pytestmark = pytest.mark.deep

WRITERS = 8
CHANGES = 50
PARTITIONS, SEGMENTS, SEGMENT_BYTES = 3, 4, 64 * 1024
WRITES_AGAIN_S = 30.0
LEFT_S = 1.0
BUSY = 4
"""How many times longer a busy machine may take."""


@pytest.fixture
def servers(server_directory: Path) -> Iterator[Replicated]:
    directory = server_directory / f"pair-{uuid4().hex[:8]}"
    directory.mkdir()
    directory.chmod(0o711)
    with replicated(directory) as made:
        yield made


@dataclass
class Writer(Background):
    """Adds and finishes one segment after the other, and retries what fails.

    Attributes:
        acknowledged: the state that RLMM confirmed last, by segment.
        at_s: when RLMM confirmed a change, monotonic.
    """

    rlmm: RemoteLogMetadataManager
    name: TopicIdPartition
    acknowledged: dict[UUID, RemoteLogSegmentState] = field(default_factory=dict)
    at_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def run(self) -> None:
        offset = 0
        while not self.wait(0):
            made = segment(self.name, offset, offset + 9)
            self._write(partial(add, self.rlmm, made), made, made.state)
            self._write(partial(move, self.rlmm, made, FINISHED), made, FINISHED)
            offset += 10

    def _write(
        self,
        change: Callable[[], object],
        made: RemoteLogSegmentMetadata,
        state: RemoteLogSegmentState,
    ) -> None:
        """Make a change, however often that takes."""
        while True:
            try:
                change()
            except RetriableRemoteStorageError:
                self.wait(0.1)
            else:
                self.acknowledged[id_of(made)] = state
                self.at_s.append(time.monotonic())
                return

    def changes_since(self, since_s: float) -> int:
        return sum(at_s > since_s for at_s in self.at_s)


def test_no_acknowledged_change_is_lost_with_a_synchronous_standby(
    servers: Replicated, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    schema.upgrade(servers.primary.create_database("tier"))
    servers.wait_for_standby()
    with running_rlmm(servers.url("tier"), tmp_path / "rlmm") as rlmm, ExitStack() as writing:
        names = [TopicIdPartition(uuid4(), f"t-{i}", 0) for i in range(WRITERS)]
        writers = [writing.enter_context(Writer(rlmm.client, name)) for name in names]
        eventually(lambda: all(len(writer.at_s) > CHANGES for writer in writers))
        servers.primary.kill()
        killed_s = time.monotonic()
        servers.promote()
        deadline_ms = int(WRITES_AGAIN_S * BUSY * 1000)
        eventually(lambda: all(w.changes_since(killed_s) > CHANGES for w in writers), deadline_ms)
        writing.close()
        for writer in writers:
            stored = {id_of(row): row.state for row in all_segments(rlmm.client, writer.name)}
            assert {each: stored.get(each) for each in writer.acknowledged} == writer.acknowledged
    again_s = [min(at_s for at_s in w.at_s if at_s > killed_s) - killed_s for w in writers]
    record_property("all writers write again after, s", f"{max(again_s):.1f}")


@pytest.mark.parametrize("way", ["two hosts", "one address that moves"])
def test_a_primary_that_turns_read_only_and_stays_up_is_left_within_a_second(
    servers: Replicated, tmp_path: Path, way: str, record_property: Callable[[str, object], None]
) -> None:
    direct = servers.primary.create_database("tier")
    schema.upgrade(direct)
    servers.catch_up()
    address = f"{LOOPBACK}:{servers.primary.port}"
    with TcpProxy(address) as moves, ExitStack() as running:
        moved = direct.replace(address, moves.address)
        url = servers.url("tier", attributes="") if way == "two hosts" else moved
        rlmm = running.enter_context(running_rlmm(url, tmp_path / "rlmm"))
        names = [TopicIdPartition(uuid4(), f"t-{i}", 0) for i in range(WRITERS)]
        writers = [running.enter_context(Writer(rlmm.client, name)) for name in names]
        watched = rlmm.client.watch_partitions([WatchedPartition(name) for name in names])
        next(watched)
        eventually(lambda: all(len(writer.at_s) > CHANGES for writer in writers))
        servers.refuse_changes()
        servers.catch_up()
        servers.promote()
        moves.lead_to(f"{LOOPBACK}:{servers.standby.port}")
        promoted_s = time.monotonic()
        eventually(lambda: all(w.changes_since(promoted_s) > CHANGES for w in writers))
        with pytest.raises(RetriableRemoteStorageError):
            list(watched)  # of the server before, whose changes have ended
        running.pop_all().close()
    first_s = min(at_s for w in writers for at_s in w.at_s if at_s > promoted_s) - promoted_s
    last_s = max(min(at_s for at_s in w.at_s if at_s > promoted_s) for w in writers) - promoted_s
    record_property("first write after the promotion, s", f"{first_s:.2f}")
    record_property("all writers write again after, s", f"{last_s:.2f}")
    assert last_s < LEFT_S * BUSY


def test_rebuild_brings_back_what_an_asynchronous_standby_lacks(
    servers: Replicated, own_s3: SeaweedFS, tmp_path: Path
) -> None:
    schema.upgrade(servers.primary.create_database("tier"))
    own_s3.endpoint.ensure_bucket("failover")
    log_dir = tmp_path / "log"
    make_log_dir(log_dir, PARTITIONS, SEGMENTS, SEGMENT_BYTES)
    url = servers.url("tier")
    with running_world(tmp_path, url, own_s3.endpoint, "failover", log_dir) as world:
        world.ship()
        servers.catch_up()
        servers.standby.stop()
        _roll(log_dir)
        world.ship()
        copied = {id_of(row) for row in world.rows()}
        assert len(copied) == PARTITIONS * SEGMENTS * 2
        servers.primary.kill()
        servers.standby.start()
        servers.promote()
        eventually(lambda: len(_rows(world)) == PARTITIONS * SEGMENTS)
        rebuilt = world.sediment("db", "rebuild", "--rsm", world.rsm.address, "--apply")
        assert rebuilt.returncode == 0, rebuilt.stdout + rebuilt.stderr
        compared = world.sediment("reconcile", "--rsm", world.rsm.address)
        assert compared.returncode == 0, compared.stdout + compared.stderr
        confirm = ("db", "confirm-rebuild", "--reason", "a standby took over")
        confirmed = world.sediment(*confirm, "--rsm", world.rsm.address)
        assert confirmed.returncode == 0, confirmed.stderr
        world.ship()
        assert {id_of(row): row.state for row in world.rows()} == dict.fromkeys(copied, FINISHED)
        _assert_bytes(world)


def _roll(log_dir: Path) -> None:
    for folder in log_dir.glob("*-*"):
        base_offset = int(max(folder.glob("*.log")).stem)
        for _ in range(SEGMENTS):
            base_offset = roll_segment(folder, base_offset, SEGMENT_BYTES)


def _assert_bytes(world: World) -> None:
    """Assert that the tier has the bytes of each local segment."""
    local = {
        (name, found.base_offset): found.log_path.read_bytes()
        for name, segments in world.local_segments().items()
        for found in segments
    }
    with world.storage() as rsm:
        stored = {
            (row.topic_id_partition, row.start_offset): b"".join(rsm.fetch_log_segment(row, 0))
            for row in world.rows()
        }
    assert stored == local


def _rows(world: World) -> list[RemoteLogSegmentMetadata]:
    try:
        return world.rows()
    except RetriableRemoteStorageError:  # the standby does not take over at once
        return []
