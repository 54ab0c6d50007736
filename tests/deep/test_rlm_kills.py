"""Kill -9 an RLM, or `sediment ship`, at every named place: the next one finishes the story."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean
from uuid import UUID

import pytest

from services.api.calls import MutationContext
from services.api.errors import RetriableRemoteStorageError
from services.api.partitions import (
    EventQuery,
    OffsetGap,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from services.api.remote_log_manager import (
    FetchError,
    FetchPartition,
    FetchRequest,
    LeadershipChange,
    LeadershipDelta,
    PartitionRole,
    PartitionStops,
    RemoteLogManager,
    StopPartition,
    StopReason,
)
from services.api.remote_log_metadata_manager import all_events, all_partitions
from services.api.superseded import is_tail
from services.common.client_security import PLAINTEXT
from services.common.failpoints import FAILPOINTS
from services.local.process import ProcessError
from services.local.stack import ServiceProcess, rlm_settings
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from services.workflows.deletion import UNKNOWN_BROKER
from tests.behaviour.test_lost_before_copy import lose_before_copy
from tests.harness.eventually import eventually
from tests.harness.processes import (
    kill_and_restart,
    run_until_killed,
    start_with_failpoint,
    wait_until_dead,
)
from tests.harness.variants import first_of
from tests.harness.world import COPY_LEASE_MS, FINISHED, World, name_topics_anew
from tests.unit.rlm.kafka_bytes import PartitionFiles, batch, three_segments, write_log_dir

KILLED = -9
EPOCH = 5
DEADLINE_MS = 60_000
KILLED_ELSEWHERE = {
    "rsm.": "test_rsm_kills.py",
    "rlmm.": "test_rsm_kills.py",
    "index_cache.": "test_index_cache_kills.py",
    "trim.": "tests/kafka/test_trims_of_three.py",
    "sweep.": "tests/spark",
    "export.": "tests/spark",
    "replacement.": "tests/behaviour/test_cli_copy.py, test_cli_scrub.py",
    "restore.": "tests/behaviour/test_cli_restore.py",
    "rewrap.": "tests/behaviour/test_cli_keys.py",
}
"""Kinds of failpoints, and where each place of the kind is a kill."""


def places(kind: str) -> list[str]:
    """Return the failpoints of a kind."""
    return [name for name in FAILPOINTS if name.startswith(kind)]


# --- what must be true in the end -----------------------------------------------------------------


def is_shipped(world: World) -> bool:
    """Return whether nothing more is to be done, so that `assert_all_shipped` can judge."""
    expected = sum(map(len, world.local_segments().values()))
    rows = world.rows()
    return len(rows) == expected and {row.state for row in rows} == {FINISHED}


def assert_all_shipped(world: World, prepared: object) -> None:
    world.assert_all_shipped()


def lose_offsets(world: World, directory: Path) -> None:
    """Lose offsets 20 to 24 of the only partition: rolled, and deleted uncopied."""
    world.log_dir = write_log_dir(directory / "losing")
    files = three_segments(world.log_dir)
    name_topics_anew(world.log_dir)
    world.ship()
    lose_before_copy(files, 25)


def is_lost_once(world: World) -> bool:
    (name,) = world.local_segments()
    with world.metadata() as rlmm:
        gaps = rlmm.partition_state(name).value.gaps
        kinds = [event.kind for event in all_events(rlmm, EventQuery(name))]
    starts = [row.start_offset for row in world.rows() if row.state is FINISHED]
    return (gaps, kinds.count("GAP"), starts, len(world.object_keys())) == (
        (OffsetGap(20, 24),),
        1,
        [0, 10, 25],
        3 * 3,
    )


def let_half_expire(world: World, directory: Path) -> set[UUID]:
    """Ship, and set a retention.ms by which the older half is due; return what must stay.

    Its bound lies in the longest pause of the records, so that minutes do not matter.
    """
    world.ship()
    times = sorted({row.max_timestamp_ms for row in world.rows()})
    _, around = max((later - earlier, (earlier, later)) for earlier, later in pairwise(times))
    with world.metadata() as rlmm:
        name = next(iter(world.local_segments()))
        now_ms = rlmm.partition_state(name).value.read_at_ms
    world.set_retention({"retention.ms": str(now_ms - int(mean(around)))})
    due = set(world.retention_due())
    kept = {row.remote_log_segment_id.id for row in world.rows()} - due
    assert due
    assert kept
    return kept


def log_starts(world: World) -> list[int]:
    with world.metadata() as rlmm:
        return [
            rlmm.partition_state(name).value.log_start_offset for name in world.local_segments()
        ]


def is_due_gone(world: World) -> bool:
    return not world.retention_due() and {row.state for row in world.rows()} == {FINISHED}


def assert_only_due_is_gone(world: World, kept: object) -> None:
    rows = world.rows()
    assert {row.remote_log_segment_id.id for row in rows} == kept
    assert len(world.object_keys()) == 3 * len(rows)
    world.assert_invariants()


def want_a_tail(world: World, directory: Path) -> PartitionFiles:
    """Ship what is rolled of a small log; what is active is to be copied as a tail."""
    world.log_dir = write_log_dir(directory / "tails")
    files = three_segments(world.log_dir)
    name_topics_anew(world.log_dir)
    world.ship()
    world.set_retention({"sediment.tail.copy.ms": "1000"})
    return files


def supersede_a_tail(world: World, directory: Path) -> None:
    """Copy a tail, roll its segment, and ship that whole."""
    files = want_a_tail(world, directory)
    with rlm_service(world, directory / "earlier") as rlm:
        rlm.start()
        eventually(lambda: is_tail_copied(world), DEADLINE_MS)
    files.snapshot(25)
    files.segment(25, [batch(25, 5)])
    world.ship()


def tails_and_others(world: World) -> tuple[list[int], list[int]]:
    """Return the start offsets of finished tails and others; fail if they are not all."""
    rows = sorted(world.rows(), key=lambda row: row.start_offset)
    done = all(row.state is FINISHED for row in rows)
    if not done or len(world.object_keys()) != 3 * len(rows):
        return [], []
    tails = [row.start_offset for row in rows if is_tail(row)]
    return tails, [row.start_offset for row in rows if not is_tail(row)]


def is_tail_copied(world: World) -> bool:
    return tails_and_others(world) == ([20], [0, 10])


def is_tail_replaced(world: World) -> bool:
    return tails_and_others(world) == ([25], [0, 10, 20])


def mark_all(world: World, directory: Path) -> None:
    """Ship, and mark every partition as deleted."""
    world.ship()
    with world.metadata() as rlmm:
        for name in world.local_segments():
            marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
            event = RemotePartitionDeleteMetadata(name, marked, 1, UNKNOWN_BROKER)
            rlmm.put_remote_partition_delete_metadata(event, MutationContext(reason="test"))
    assert world.rows()


def is_removed(world: World) -> bool:
    with world.metadata() as rlmm:
        known = {summary.topic_id_partition for summary in all_partitions(rlmm)}
    return known.isdisjoint(world.local_segments()) and world.object_keys() == []


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Story:
    """What an RLM is killed in.

    Attributes:
        places: the failpoints, each a row of the table.
        prepare: makes what the story begins with.
        begun: what must hold after the kill.
        is_done: becomes true once the next RLM has finished.
        expected: asserts the end, by what `prepare` returned.
        before: an earlier kill that the story needs.
        nth: the passage of the place that kills.
        settings: of this RLM.
    """

    places: list[str]
    is_done: Callable[[World], bool]
    prepare: Callable[[World, Path], object] = lambda world, directory: None
    begun: Callable[[World], bool] = lambda world: True
    expected: Callable[[World, object], None] = lambda world, prepared: world.assert_invariants()
    before: str = ""
    nth: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    has_logs: bool = True


REMOVAL_SETTINGS = {
    "RLM_REMOTE_PARTITION_REMOVER_TASK_INTERVAL_MS": "200",
    "RLM_DELETION_GRACE_MS": "0",
}
STORIES = {
    "copying": Story(places("copy."), is_shipped, expected=assert_all_shipped, nth=3),
    "cleaning up": Story(
        places("cleanup."), is_shipped, expected=assert_all_shipped, before="copy.bytes_sent"
    ),
    "recording a loss": Story(places("gap."), is_lost_once, lose_offsets),
    "expiring": Story(
        places("deletion."),
        is_due_gone,
        let_half_expire,
        lambda world: max(log_starts(world)) > 0,
        expected=assert_only_due_is_gone,
    ),
    "copying a tail": Story(places("copy."), is_tail_copied, want_a_tail),
    "superseding a tail": Story(places("deletion.")[1:], is_tail_replaced, supersede_a_tail),
    "removing": Story(
        [*places("removal."), *places("deletion.")[1:]],
        is_removed,
        mark_all,
        lambda world: not is_removed(world),
        expected=lambda world, prepared: None,
        settings=REMOVAL_SETTINGS,
        has_logs=False,
    ),
}
SHIPS = ("copying", "cleaning up", "recording a loss")
"""The stories of which `sediment ship` has a part."""


def rows_of(names: Iterator[str] | tuple[str, ...] | list[str]) -> list[object]:
    """Return the rows (story, place); of each story the first place runs in `.ci/run`."""
    return [
        pytest.param(story, *param.values, marks=param.marks)
        if isinstance(param, pytest.ParameterSet)
        else pytest.param(story, param)
        for story in names
        for param in first_of(STORIES[story].places)
    ]


@contextmanager
def rlm_service(
    world: World, directory: Path, more: Mapping[str, str] | None = None, *, has_logs: bool = True
) -> Iterator[ServiceProcess]:
    """Provide RLM beside the world's log, not started yet."""
    log_dirs = [world.log_dir] if has_logs else []
    settings = rlm_settings(world.rsm.address, world.rlmm.address, log_dirs, task_interval_ms=200)
    settings |= {"RLM_COPY_LEASE_MS": str(COPY_LEASE_MS), **(more or {})}
    rlm = ServiceProcess("rlm", settings, directory / "rlm")
    try:
        yield rlm
    finally:
        rlm.kill()


def test_every_failpoint_is_a_kill_of_some_table() -> None:
    here = {place for story in STORIES.values() for place in story.places}
    elsewhere = {place for kind in KILLED_ELSEWHERE for place in places(kind)}
    assert sorted(here | elsewhere) == sorted(FAILPOINTS)


@pytest.mark.parametrize(("name", "place"), rows_of(list(STORIES)))
def test_rlm_killed(world: World, tmp_path: Path, name: str, place: str) -> None:
    story = STORIES[name]
    prepared = story.prepare(world, tmp_path)
    with rlm_service(world, tmp_path / "first", story.settings, has_logs=story.has_logs) as first:
        if story.before:
            run_until_killed(first, story.before)
        run_until_killed(first, place, story.nth)
    assert story.begun(world)
    # Another RLM, of another broker, finishes what the killed one began.
    with rlm_service(world, tmp_path / "second", story.settings, has_logs=story.has_logs) as second:
        second.start()
        eventually(lambda: story.is_done(world), DEADLINE_MS)
    story.expected(world, prepared)


@pytest.mark.parametrize(("name", "place"), rows_of(SHIPS))
def test_ship_killed(world: World, tmp_path: Path, name: str, place: str) -> None:
    kill_ship(world, tmp_path, STORIES[name], f"{place}:1")


@pytest.mark.long
@pytest.mark.parametrize("place", STORIES["copying"].places)
def test_ship_killed_later(world: World, tmp_path: Path, place: str) -> None:
    kill_ship(world, tmp_path, STORIES["copying"], f"{place}:7")


def kill_ship(world: World, directory: Path, story: Story, failpoint: str) -> None:
    prepared = story.prepare(world, directory)
    for kill in [*([f"{story.before}:3"] if story.before else []), failpoint]:
        with world.start_shipping(failpoint=kill) as process:
            assert process.wait(60) == KILLED
    world.ship()
    assert story.is_done(world)
    story.expected(world, prepared)


# --- what does not fit into the table -------------------------------------------------------------


def test_the_log_start_is_raised_before_anything_is_marked(world: World, tmp_path: Path) -> None:
    let_half_expire(world, tmp_path)
    with rlm_service(world, tmp_path) as rlm:
        one_at_a_time = {"RLM_REMOTE_LOG_MANAGER_EXPIRATION_THREAD_POOL_SIZE": "1"}
        with suppress(ProcessError):
            rlm.start({**one_at_a_time, "SEDIMENT_FAILPOINT": "deletion.log_start_raised"})
        wait_until_dead(rlm)
    assert len([start for start in log_starts(world) if start]) == 1
    assert {row.state for row in world.rows()} == {FINISHED}


def test_expired_offsets_are_out_of_range_though_still_on_disk(
    world: World, tmp_path: Path
) -> None:
    kept = let_half_expire(world, tmp_path)
    with rlm_service(world, tmp_path) as rlm:
        rlm.start()
        eventually(lambda: is_due_gone(world), DEADLINE_MS)
        assert_only_due_is_gone(world, kept)
        with reported(rlm) as manager:
            for name, start in zip(world.local_segments(), log_starts(world), strict=True):
                for offset, expected in (
                    (start - 1, FetchError.OFFSET_OUT_OF_RANGE),
                    (start, FetchError.NONE),
                ):
                    request = FetchRequest((FetchPartition(name, offset, 1 << 20),), 1 << 20)
                    part = next(iter(manager.fetch(request)))
                    assert (part.error, part.log_start_offset) == (expected, start)


@pytest.mark.long
def test_two_rlms_remove_side_by_side(world: World, tmp_path: Path) -> None:
    mark_all(world, tmp_path)
    with (
        rlm_service(world, tmp_path / "a", REMOVAL_SETTINGS, has_logs=False) as a,
        rlm_service(world, tmp_path / "b", REMOVAL_SETTINGS, has_logs=False) as b,
    ):
        a.start()
        b.start()
        eventually(lambda: is_removed(world), DEADLINE_MS)


@contextmanager
def reported(rlm: ServiceProcess) -> Iterator[RemoteLogManager]:
    with open_channel(rlm.address, PLAINTEXT) as channel:
        yield RemoteLogManagerClient(channel, rlm.address)


def lead_all(manager: RemoteLogManager, world: World) -> None:
    changes = [LeadershipChange(n, EPOCH, PartitionRole.LEADER) for n in world.local_segments()]
    assert not any(manager.on_leadership_change(LeadershipDelta(tuple(changes))))


def disable_all(manager: RemoteLogManager, world: World) -> None:
    """Stop as a broker whose topics are tiered no more; again if a copy pass came between."""
    stops = [StopPartition(n, EPOCH, StopReason.TIERING_DISABLED) for n in world.local_segments()]
    eventually(lambda: not any(manager.stop_partitions(PartitionStops(tuple(stops)))), 30_000)


@pytest.mark.parametrize("place", first_of(places("deletion.")))
def test_rlm_killed_while_it_deletes_a_disabled_topic(
    world: World, tmp_path: Path, place: str
) -> None:
    world.ship()
    world.set_retention({"remote.log.delete.on.disable": "true"})
    with rlm_service(world, tmp_path, {"RLM_PARTITION_SOURCE": "callbacks"}) as rlm:
        start_with_failpoint(rlm, place)
        with reported(rlm) as manager:
            lead_all(manager, world)
            with suppress(RetriableRemoteStorageError):  # it dies of the call, or after it
                disable_all(manager, world)
        wait_until_dead(rlm)
        # RLMM may confirm the deletions of all partitions in one transaction.
        assert world.rows() or place == "deletion.confirmed_some"
        # The client that disabled the topic repeats its calls.
        kill_and_restart(rlm)
        with reported(rlm) as manager:
            lead_all(manager, world)
            disable_all(manager, world)
        eventually(lambda: not world.rows() and not world.object_keys(), deadline_ms=DEADLINE_MS)
        world.assert_invariants()
