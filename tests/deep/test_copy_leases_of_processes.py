"""Leases between processes: RLMs that are paused, killed or cut off in the middle of copies."""

import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from services.api.partitions import EventQuery, PartitionEvent
from services.api.remote_log_manager import all_descriptions
from services.api.remote_log_metadata_manager import all_events
from services.api.segments import RemoteLogSegmentState
from services.common.client_security import PLAINTEXT
from services.local.stack import ServiceProcess, rlm_settings, rsm_settings
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.processes import kill_and_restart, run_until_killed
from tests.harness.proxy import TcpProxy
from tests.harness.synthetic_log import make_log_dir
from tests.harness.world import FINISHED, World

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
# Renewed at a third of it; a machine that many tests share may stand still for some seconds.
LEASE_MS = 12_000
DEADLINE_MS = 120_000
COPIED = ["COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"]
GIVES_UP = "the copy is abandoned: "
GIVEN_UP = ["COPY_SEGMENT_STARTED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"]


@contextmanager
def an_rlm(
    world: World,
    directory: Path,
    log_dir: Path,
    *,
    rsm: str = "",
    rlmm: str = "",
    lease_ms: int = LEASE_MS,
) -> Iterator[ServiceProcess]:
    """Not started yet."""
    addresses = rsm or world.rsm.address, rlmm or world.rlmm.address
    settings = rlm_settings(*addresses, [log_dir], task_interval_ms=200)
    settings["RLM_COPY_LEASE_MS"] = str(lease_ms)
    settings["RLM_REMOTE_LOG_MANAGER_TASK_RETRY_BACKOFF_MAX_MS"] = "1000"
    rlm = ServiceProcess("rlm", settings, directory)
    try:
        yield rlm
    finally:
        rlm.kill()


@pytest.fixture
def large(world: World, tmp_path: Path) -> World:
    """With a log that takes some seconds to be shipped."""
    world.log_dir = tmp_path / "large"
    make_log_dir(world.log_dir, partitions=2, segments=20, segment_bytes=2 * 1024 * 1024)
    return world


@pytest.fixture
def own_rsm(world: World, tmp_path: Path) -> Iterator[ServiceProcess]:
    """Over the same bucket, for one RLM alone."""
    rsm = ServiceProcess("rsm", rsm_settings(world.s3, world.bucket, ""), tmp_path / "own-rsm")
    rsm.start()
    yield rsm
    rsm.kill()


def send(service: ServiceProcess, number: signal.Signals) -> None:
    os.kill(service.process.pid, number)


def hold_up_copies(world: World, rsm: ServiceProcess, renewals: int = 0) -> set[str]:
    """Stop the RSM in the middle; answers the ids of the copies under way.

    What RSM had answered by then finishes yet, and the next copy begins: those that are renewed
    twice, in a third of the lease, wait for RSM. It must go on within 30 s (keepalive).
    """
    eventually(lambda: any(row.state is FINISHED for row in world.rows()), DEADLINE_MS)
    send(rsm, signal.SIGSTOP)
    reported: defaultdict[str, set[datetime]] = defaultdict(set)

    def waiting() -> set[str]:
        ends = world.copy_lease_ends()
        for segment_id, end in ends.items():
            reported[segment_id].add(end)
        rows = world.rows()
        places = {row.topic_id_partition for row in rows if row.state is STARTED}
        for name, segments in world.local_segments().items():
            done = sum(row.state is FINISHED for row in rows if row.topic_id_partition == name)
            assert name in places or done == len(segments)
        assert all(len(reported[segment_id]) > renewals for segment_id in ends)
        return set(ends)

    return eventually(waiting, DEADLINE_MS)


def wait_until_renewed(world: World, until: datetime) -> None:
    """Until every copy under way, of which there are some, is leased beyond a time."""
    eventually(lambda: min(world.copy_lease_ends().values(), default=until) > until, DEADLINE_MS)


def wait_until_all_shipped(world: World) -> None:
    expected = sum(map(len, world.local_segments().values()))
    eventually(lambda: [row.state for row in world.rows()] == [FINISHED] * expected, DEADLINE_MS)


def problems_told(rlm: ServiceProcess) -> list[str]:
    with open_channel(rlm.address, PLAINTEXT) as channel:
        client = RemoteLogManagerClient(channel, rlm.address)
        return [p.message for d in all_descriptions(client) for p in d.problems]


def trails(world: World) -> dict[str, list[PartitionEvent]]:
    """The events of each segment that there ever was."""
    found: dict[str, list[PartitionEvent]] = {}
    with world.metadata() as rlmm:
        for name in world.local_segments():
            for event in all_events(rlmm, EventQuery(name)):
                if event.kind == "SEGMENT":
                    found.setdefault(str(event.segment_id), []).append(event)
    return found


def states_of(trail: list[PartitionEvent]) -> list[str]:
    return [str(event.to_state) for event in trail]


def test_copies_of_a_paused_rlm_are_taken_over_after_their_lease(
    large: World, own_rsm: ServiceProcess, tmp_path: Path
) -> None:
    copied_dir = Path(shutil.copytree(large.log_dir, tmp_path / "copied-log"))
    aside = tmp_path / "aside"
    aside.mkdir()
    folders = [path.rename(aside / path.name) for path in copied_dir.glob("*-*/")]
    with (
        an_rlm(large, tmp_path / "paused", large.log_dir, rsm=own_rsm.address) as paused,
        an_rlm(large, tmp_path / "other", copied_dir) as other,
    ):
        other.start()
        paused.start()
        attempts = hold_up_copies(large, own_rsm, renewals=2)
        for folder in folders:
            folder.rename(copied_dir / folder.name)
        waiting = "another process of broker"
        eventually(
            lambda: sum(waiting in text for text in problems_told(other)) == len(attempts),
            DEADLINE_MS,
        )
        # It waits for as long as the copies are renewed.
        met = large.copy_lease_ends()
        wait_until_renewed(large, max(met.values()))
        assert set(large.copy_lease_ends()) == set(met) == attempts
        send(paused, signal.SIGSTOP)
        wait_until_all_shipped(large)
        send(paused, signal.SIGCONT)
        send(own_rsm, signal.SIGCONT)
        log = paused.process.log_path
        eventually(lambda: log.read_text().count(GIVES_UP) >= len(attempts), DEADLINE_MS)
        eventually_holds(large.assert_all_shipped, DEADLINE_MS)
    reported = {segment_id: states_of(trail) for segment_id, trail in trails(large).items()}
    assert {segment_id for segment_id, states in reported.items() if states == GIVEN_UP} == attempts
    assert all(states == COPIED for id, states in reported.items() if id not in attempts)


@pytest.mark.long
def test_copies_of_a_killed_rlm_are_cleaned_up_after_their_lease(
    world: World, tmp_path: Path
) -> None:
    with an_rlm(world, tmp_path / "killed", world.log_dir) as rlm:
        run_until_killed(rlm, "copy.bytes_sent", nth=3)
        kill_and_restart(rlm)
        wait_until_all_shipped(world)
    world.assert_all_shipped()
    given_up = [trail for trail in trails(world).values() if states_of(trail) == GIVEN_UP]
    assert given_up
    assert all(trail[1].at_ms - trail[0].at_ms >= LEASE_MS for trail in given_up)


def test_a_renewal_outage_that_is_shorter_than_the_lease_costs_nothing(
    large: World, own_rsm: ServiceProcess, tmp_path: Path
) -> None:
    with (
        TcpProxy(large.rlmm.address) as proxy,
        an_rlm(
            large,
            tmp_path / "cut-off",
            large.log_dir,
            rsm=own_rsm.address,
            rlmm=proxy.address,
            lease_ms=30_000,
        ) as rlm,
    ):
        rlm.start()
        hold_up_copies(large, own_rsm)
        proxy.refuse_connections()
        proxy.cut_connections()
        log = rlm.process.log_path
        eventually(lambda: "copies were not renewed" in log.read_text(), DEADLINE_MS)
        before = large.copy_lease_ends()
        proxy.accept_connections()
        wait_until_renewed(large, max(before.values()))
        send(own_rsm, signal.SIGCONT)
        wait_until_all_shipped(large)
    large.assert_all_shipped()
    assert all(states_of(trail) == COPIED for trail in trails(large).values())
