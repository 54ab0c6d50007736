"""Kill -9 an RLM that owns its log directories anywhere in local retention, run it again: what the
tier has left the disk, and every byte is read as before."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import unpack_from

import pytest

from services.api.ids import TopicIdPartition
from services.common.client_security import PLAINTEXT
from services.common.failpoints import FAILPOINTS
from services.local.process import ProcessError
from services.local.stack import ServiceProcess, rlm_settings
from services.rlm.kafka_log.local_log import LocalPartition
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import LocalSegment, list_segments
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from tests.harness.eventually import eventually
from tests.harness.processes import kill_and_restart, run_until_killed
from tests.harness.ship_stack import read
from tests.harness.variants import first_of
from tests.harness.world import World

LOCAL = [name for name in FAILPOINTS if name.startswith("local.")]
OWNER = {"RLM_LOCAL_RETENTION_ENFORCE": "true", "RLM_LOG_RETENTION_CHECK_INTERVAL_MS": "200"}
Logs = dict[TopicIdPartition, tuple[int, bytes]]
"""Where each log begins, and all that is in it from there on."""


@pytest.fixture
def written(world: World) -> Logs:
    """All that was written, of which the rolled part is in the tier; nothing of it stays here."""
    world.ship()
    world.set_retention({"local.retention.ms": "1"})
    found = find_partitions([world.log_dir]).partitions
    starts = {name: found[name].log_start_offset or 0 for name in found}
    return {
        name: (
            starts[name],
            from_offset(b"".join(s.log_path.read_bytes() for s in log), starts[name]),
        )
        for name, log in here(world)
    }


def from_offset(batches: bytes, offset: int) -> bytes:
    """From the batch on that holds `offset`."""
    at = 0
    while True:
        base, length = unpack_from(">qi", batches, at)
        (last_delta,) = unpack_from(">i", batches, at + 23)
        if base + last_delta >= offset:
            return batches[at:]
        at += 12 + length


@contextmanager
def rlm_of(world: World, directory: Path, more: dict[str, str]) -> Iterator[ServiceProcess]:
    """RLM beside the world's log, not started yet."""
    addresses = world.rsm.address, world.rlmm.address
    settings = rlm_settings(*addresses, [world.log_dir], task_interval_ms=200)
    rlm = ServiceProcess("rlm", {**settings, **more}, directory)
    yield rlm
    rlm.kill()


@pytest.fixture
def rlm(world: World, tmp_path: Path) -> Iterator[ServiceProcess]:
    """Owns the log directory."""
    with rlm_of(world, tmp_path / "rlm", OWNER) as made:
        yield made


def here(world: World) -> list[tuple[TopicIdPartition, tuple[LocalSegment, ...]]]:
    found = find_partitions([world.log_dir]).partitions.values()
    return [(each.topic_id_partition, list_segments(each.path)) for each in found]


def assert_whole_logs(world: World, before: dict[TopicIdPartition, list[int]]) -> None:
    """Of every log the end is here, without a hole, and it can be opened."""
    for name, segments in here(world):
        bases = [segment.base_offset for segment in segments]
        assert bases == before[name][-len(bases) :]
        log = LocalPartition(find_partitions([world.log_dir]).partitions[name]).read()
        assert log is not None
        assert log.last_stable_offset == log.log_end_offset


def assert_all_readable(rlm: ServiceProcess, written: Logs) -> None:
    with open_channel(rlm.address, PLAINTEXT) as channel:
        manager = RemoteLogManagerClient(channel, rlm.address)
        for name, data in written.items():
            start, batches = data
            assert read(manager, start, name) == batches


@pytest.mark.parametrize("name", first_of(LOCAL))
@pytest.mark.parametrize("nth", first_of([1, 3]))
def test_rlm_killed_while_deleting_locally(
    world: World, written: Logs, rlm: ServiceProcess, name: str, nth: int
) -> None:
    before = {n: [s.base_offset for s in segments] for n, segments in here(world)}
    copied = world.rows()
    run_until_killed(rlm, name, nth)
    deleted = sum(len(before[n]) - len(segments) for n, segments in here(world))
    assert deleted >= nth
    assert_whole_logs(world, before)
    kill_and_restart(rlm)
    assert_all_readable(rlm, written)
    eventually(lambda: all(len(log) == 1 for _, log in here(world)), deadline_ms=60_000)
    assert_all_readable(rlm, written)
    eventually(lambda: not list(world.log_dir.glob("*/*.deleted")), deadline_ms=60_000)
    assert_whole_logs(world, before)
    assert world.rows() == copied
    world.assert_invariants()
    for _, (active,) in here(world):
        left = {path.name for path in active.directory.glob("0*") if path.suffix != ".snapshot"}
        assert left == {active.file(suffix).name for suffix in (".log", ".index", ".timeindex")}


def test_only_one_may_own_a_log_directory(
    world: World, written: Logs, rlm: ServiceProcess, tmp_path: Path
) -> None:
    rlm.start()
    refusal = r"RLM_LOCAL_RETENTION_ENFORCE: .*holds its \.lock"
    with (
        rlm_of(world, tmp_path / "other", OWNER) as other,
        pytest.raises(ProcessError, match=refusal),
    ):
        other.start()
    with rlm_of(world, tmp_path / "reader", {}) as reader:
        reader.start()
        assert_all_readable(reader, written)
