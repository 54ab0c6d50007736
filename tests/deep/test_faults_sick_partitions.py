"""Some partitions of many are sick, each in its own way: the others are copied as if they were not,
and they too, once somebody has mended them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from services.api.remote_log_manager import ProblemKind, all_descriptions
from services.common.client_security import PLAINTEXT
from services.local.stack import ServiceProcess, rlm_settings
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from tests.harness.eventually import eventually
from tests.harness.world import FINISHED, World, name_topics_anew
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, three_segments, write_log_dir

pytestmark = pytest.mark.deep

PARTITIONS = 40
COPIER_THREADS = 2
MOST_LOG_LINES_OF_THE_SICK = 60
Hurt = Callable[[PartitionFiles], object]


def loop_of_links(files: PartitionFiles) -> None:
    """Nobody can read the folder, not even root."""
    files.path.rename(files.path.with_name("taken-away"))
    files.path.symlink_to(files.path)


def bad_block(files: PartitionFiles) -> None:
    """The log opens, and no read of it succeeds."""
    log = files.file(0, ".log")
    log.rename(files.path / "kept")
    log.mkdir()


def flipped_bit(files: PartitionFiles) -> None:
    log = files.file(0, ".log")
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)


def no_epochs(files: PartitionFiles) -> None:
    (files.path / "leader-epoch-checkpoint").unlink()


def mend_loop(files: PartitionFiles) -> None:
    files.path.unlink()
    files.path.with_name("taken-away").rename(files.path)


def mend_block(files: PartitionFiles) -> None:
    files.file(0, ".log").rmdir()
    (files.path / "kept").rename(files.file(0, ".log"))


def mend_bit(files: PartitionFiles) -> None:
    files.segment(0, [batch(0, 5), batch(5, 5)])


def mend_epochs(files: PartitionFiles) -> None:
    files.epochs((0, 0))


SICK: list[tuple[Hurt, Hurt, ProblemKind]] = [
    (loop_of_links, mend_loop, ProblemKind.UNREADABLE),
    (bad_block, mend_block, ProblemKind.UNREADABLE),
    (flipped_bit, mend_bit, ProblemKind.CORRUPT_BATCH),
    (no_epochs, mend_epochs, ProblemKind.LEADER_EPOCHS_MISSING),
]
HEALTHY = 2 * (PARTITIONS - len(SICK))


@pytest.fixture
def all_files(world: World, tmp_path: Path) -> list[PartitionFiles]:
    world.log_dir = write_log_dir(tmp_path / "many")
    made = [three_segments(world.log_dir, replace(NAME, partition=n)) for n in range(PARTITIONS)]
    name_topics_anew(world.log_dir)
    return made


@pytest.mark.long
def test_sick_partitions_do_not_delay_the_others(
    world: World, all_files: list[PartitionFiles], tmp_path: Path
) -> None:
    settings = rlm_settings(world.rsm.address, world.rlmm.address, [world.log_dir], 200) | {
        "RLM_REMOTE_LOG_MANAGER_COPIER_THREAD_POOL_SIZE": str(COPIER_THREADS),
        "RLM_REMOTE_LOG_MANAGER_TASK_RETRY_BACKOFF_MAX_MS": "1000",
    }
    rlm = ServiceProcess("rlm", settings, tmp_path / "rlm")
    # A loop of links tells no topic's id: of the first RLM has to know before.
    for (hurt, _, _), files in zip(SICK[1:], all_files[1:], strict=False):
        hurt(files)
    rlm.start()
    try:
        SICK[0][0](all_files[0])
        eventually(lambda: len(copied(world)) >= HEALTHY, 120_000)
        kinds = {kind for _, _, kind in SICK}
        eventually(lambda: kinds <= problems(rlm), 30_000)
        lines = [line for line in log_of(rlm) if '"WARNING"' in line]
        assert len(lines) < MOST_LOG_LINES_OF_THE_SICK
        for (_, mend, _), files in zip(SICK, all_files, strict=False):
            mend(files)
        eventually(lambda: len(copied(world)) == 2 * PARTITIONS, 120_000)
    finally:
        rlm.kill()
    world.assert_all_shipped()


def copied(world: World) -> list[object]:
    return [row for row in world.rows() if row.state is FINISHED]


def problems(rlm: ServiceProcess) -> set[ProblemKind]:
    with open_channel(rlm.address, PLAINTEXT) as channel:
        manager = RemoteLogManagerClient(channel, rlm.address)
        return {p.kind for found in all_descriptions(manager) for p in found.problems}


def log_of(rlm: ServiceProcess) -> list[str]:
    return rlm.process.log_path.read_text().splitlines()
