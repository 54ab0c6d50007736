"""Test that the leader of a disabled topic deletes the topic from the tier, even after a kill.

No broker reports the setting to RLM: the tests use log directories, and a cluster that is polled.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import all_events
from services.rlm.kafka_admin.cluster_view import PartitionView, TopicView
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.roles.partition_roles import PartitionSource
from services.rlm.scheduler import PassFailedError
from tests.behaviour.test_rlm_poller import (
    THEIRS,
    AnsweringCluster,
    led_by,
    poll,
    polling_rlm,
    take_turns,
)
from tests.behaviour.test_tiered_again import (
    ALL,
    assert_tier_is,
    delete_locally,
    gaps,
    is_shipped,
    roll,
)
from tests.deep.test_rlm_kills import rlm_service
from tests.harness.callback_rlm import FOLLOWER, LEADER, callback_rlm, send_role, turn
from tests.harness.eventually import eventually
from tests.harness.holds import hold, release
from tests.harness.processes import kill_and_restart, run_until_killed
from tests.harness.retained_log import AT_ONCE, Changed, hourly_log
from tests.harness.ship_stack import Stack, description, read
from tests.harness.world import World
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles

pytestmark = pytest.mark.deep

EPOCH = 2  # the latest of an hourly log
ENABLED = {"remote.storage.enable": "true"}
NOT_ENABLED = {"remote.storage.enable": "false"}
DELETABLE = {"remote.log.delete.on.disable": "true"}
DISABLED = {**NOT_ENABLED, **DELETABLE}


@dataclass
class Finding:
    """Makes RLMs that find the partitions they lead by themselves."""

    stack: Stack
    log_dir: Path
    source: PartitionSource
    cluster: AnsweringCluster

    def rlm(self, rsm: Any = None, **changed: Callable[..., Any]) -> Any:
        """Make an RLM that leads the partition; `changed` methods of RLMM are replaced."""
        rlmm = Changed(self.stack.rlmm, **changed)
        if self.source is PartitionSource.POLLER:
            assert rsm is None
            rlm = polling_rlm(self.stack, self.cluster, rlmm)
            poll(rlm)
            return rlm
        return BrokerRemoteLogManager([self.log_dir], rsm or self.stack.rsm, rlmm, AT_ONCE)

    def leader(self, rsm: Any = None, **changed: Callable[..., Any]) -> Any:
        """Make a leader that has copied all rolled segments."""
        rlm = self.rlm(rsm, **changed)
        take_turns(rlm)
        put(self.stack, ENABLED)
        take_turns(rlm)
        assert self.stack.ranges() == ALL
        return rlm


@pytest.fixture
def files(log_dir: Path) -> PartitionFiles:
    return hourly_log(log_dir)


def made_finding(stack: Stack, source: PartitionSource) -> Finding:
    return Finding(stack, stack.log_dir, source, AnsweringCluster({NAME.topic: led_by(7)}))


@pytest.fixture(params=[PartitionSource.STATIC, PartitionSource.POLLER])
def finding(stack: Stack, files: PartitionFiles, request: pytest.FixtureRequest) -> Finding:
    return made_finding(stack, request.param)


@pytest.fixture
def static(stack: Stack, files: PartitionFiles) -> Finding:
    return made_finding(stack, PartitionSource.STATIC)


@pytest.fixture
def polled(stack: Stack, files: PartitionFiles) -> Finding:
    return made_finding(stack, PartitionSource.POLLER)


def put(stack: Stack, settings: dict[str, str]) -> None:
    stack.rlmm.put_topic_config(NAME.topic_id, settings, now=True)


def tier_is_empty(stack: Stack) -> bool:
    return (stack.segments(), stack.keys()) == ([], [])


def revision(stack: Stack) -> int:
    return stack.rlmm.partition_state(NAME).revision


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if text in r.getMessage()]


@pytest.mark.deep
def test_a_disabled_topic_is_deleted_from_the_tier_and_led_as_before(
    stack: Stack, finding: Finding, files: PartitionFiles
) -> None:
    rlm = finding.leader()
    delete_locally(files, [0])
    put(stack, DISABLED)
    take_turns(rlm, rounds=2)
    assert tier_is_empty(stack)
    assert stack.rlmm.partition_state(NAME).value.log_start_offset == 10
    marks = {
        event.reason
        for event in all_events(stack.rlmm, EventQuery(NAME))
        if event.to_state == "DELETE_SEGMENT_STARTED"
    }
    assert marks == {"tiering was disabled"}
    roll(files, 60)
    take_turns(rlm, rounds=2)
    assert tier_is_empty(stack)
    assert description(rlm).role is LEADER
    assert isinstance(read(rlm, 10), bytes)


@pytest.mark.deep
def test_disabled_topic_is_deleted_only_once(
    stack: Stack, finding: Finding, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="services.rlm")
    rlm = finding.leader()
    put(stack, DISABLED)
    take_turns(rlm, rounds=3)
    assert tier_is_empty(stack)
    disabled = revision(stack)
    take_turns(rlm, rounds=5)
    take_turns(finding.rlm(), rounds=2)
    assert revision(stack) == disabled
    (line,) = lines(caplog, "tiering is disabled")
    assert line.endswith("marked for deletion, log start 0")
    assert lines(caplog, "task failed") == []


@pytest.mark.deep
def test_enabled_again_all_that_is_local_is_in_the_tier_again(
    stack: Stack, finding: Finding, files: PartitionFiles
) -> None:
    rlm = finding.leader()
    put(stack, DISABLED)
    take_turns(rlm, rounds=2)
    assert tier_is_empty(stack)
    delete_locally(files, [0, 10])
    roll(files, 60)
    take_turns(rlm)
    put(stack, ENABLED)
    take_turns(rlm)
    assert_tier_is(stack, files, [*ALL[2:], (60, 69)])
    assert gaps(stack) == ()
    found = description(rlm)
    assert (found.problems, found.lag_segments, found.copied_through_offset) == ((), 0, 69)


@pytest.mark.parametrize(
    "settings", [{}, NOT_ENABLED, DELETABLE, {**ENABLED, **DELETABLE}, DISABLED]
)
def test_nothing_less_than_both_settings_deletes_and_a_hold_keeps(
    stack: Stack, finding: Finding, settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="services.rlm")
    rlm = finding.leader()
    put(stack, DISABLED)  # no turn comes: on the way to settings that are not to be had at once
    put(stack, settings)
    if settings == DISABLED:
        hold(stack.rlmm, NAME)
    before = stack.segments()
    take_turns(rlm, rounds=4)
    assert stack.segments() == before
    reported = lines(caplog, "tiering is disabled; the tier keeps")
    assert len(reported) == (1 if settings in (NOT_ENABLED, DISABLED) else 0)
    assert lines(caplog, "task failed") == []


@pytest.mark.deep
def test_disabled_topic_on_hold_is_deleted_after_the_hold(stack: Stack, finding: Finding) -> None:
    rlm = finding.leader()
    put(stack, DISABLED)
    hold(stack.rlmm, NAME)
    take_turns(rlm, rounds=2)
    assert stack.ranges() == ALL
    release(stack.rlmm, NAME)
    take_turns(rlm, rounds=2)
    assert tier_is_empty(stack)


def test_settings_that_are_known_here_alone_delete_nothing(stack: Stack, static: Finding) -> None:
    """The settings are those that RLMM returned an interval ago."""
    old: list[Any] = []

    def told_old_first(topic_id: Any) -> Any:
        return old.pop() if old else stack.rlmm.topic_config(topic_id)

    rlm = static.leader(topic_config=told_old_first)
    put(stack, DISABLED)
    old.append(stack.rlmm.topic_config(NAME.topic_id))
    put(stack, {**ENABLED, **DELETABLE})
    with pytest.raises(PassFailedError, match=r"remote\.storage\.enable is no longer false"):
        rlm.lanes.expiration._entries["topics that are disabled"].task()
    assert old == []
    assert NAME in rlm.lanes.copies.seconds_since_last_success()
    take_turns(rlm, rounds=2)
    assert stack.ranges() == ALL


@pytest.mark.deep
@pytest.mark.parametrize(
    "at", ["raise_log_start_offset", "update_remote_log_segment_metadata_batch"]
)
def test_enabled_while_it_is_being_disabled_nothing_more_is_marked(
    stack: Stack, finding: Finding, files: PartitionFiles, at: str
) -> None:
    real = getattr(stack.rlmm, at)
    called: list[object] = []

    def enabled_meanwhile(*args: Any, **kwargs: Any) -> Any:
        if stack.rlmm.topic_config(NAME.topic_id).config.remote_storage_enable is False:
            called.append(args)
            put(stack, ENABLED)
        return real(*args, **kwargs)

    rlm = finding.leader(**{at: enabled_meanwhile})
    before = stack.segments()
    put(stack, DISABLED)
    take_turns(rlm)
    assert len(called) == 1
    assert stack.segments() == before
    roll(files, 60)
    take_turns(rlm, rounds=2)
    assert_tier_is(stack, files, [*ALL, (60, 69)])
    assert stack.segments()[: len(before)] == before
    assert gaps(stack) == ()


@pytest.mark.deep
def test_rlmm_that_is_away_is_asked_again(stack: Stack, finding: Finding) -> None:
    is_away = True

    def away(*args: Any, **kwargs: Any) -> Any:
        if is_away:
            raise RetriableRemoteStorageError("away")
        return stack.rlmm.raise_log_start_offset(*args, **kwargs)

    rlm = finding.leader(raise_log_start_offset=away)
    put(stack, DISABLED)
    take_turns(rlm, rounds=2)
    assert stack.ranges() == ALL
    assert NAME in rlm.lanes.copies.seconds_since_last_success()
    is_away = False
    take_turns(rlm, rounds=2)
    assert tier_is_empty(stack)


def test_a_follower_deletes_nothing(stack: Stack, polled: Finding) -> None:
    polled.leader()
    put(stack, DISABLED)
    polled.cluster.topics[NAME.topic] = led_by(THEIRS)
    follower = polled.rlm()
    take_turns(follower, rounds=2)
    turn(follower.lanes.followers)
    take_turns(follower, rounds=2)
    assert description(follower).role is FOLLOWER
    assert stack.ranges() == ALL


@pytest.mark.deep
def test_a_role_that_is_received_meanwhile_is_applied_afterwards(
    stack: Stack, polled: Finding, caplog: pytest.LogCaptureFixture
) -> None:
    def demoted_meanwhile(*args: Any, **kwargs: Any) -> Any:
        polled.cluster.topics[NAME.topic] = led_by(THEIRS)
        poll(rlm)
        assert "its tiering is being disabled" in caplog.text
        return stack.rlmm.raise_log_start_offset(*args, **kwargs)

    rlm = polled.leader(raise_log_start_offset=demoted_meanwhile)
    put(stack, DISABLED)
    take_turns(rlm)
    poll(rlm)
    assert description(rlm).role is FOLLOWER
    assert NAME not in rlm.lanes.copies.seconds_since_last_success()
    take_turns(rlm)
    assert tier_is_empty(stack)


@pytest.mark.deep
def test_a_role_that_ends_meanwhile_does_not_begin_again(stack: Stack, polled: Finding) -> None:
    def moved_meanwhile(*args: Any, **kwargs: Any) -> Any:
        elsewhere = PartitionView(THEIRS, EPOCH, frozenset({THEIRS}))
        polled.cluster.topics[NAME.topic] = TopicView(NAME.topic_id, {0: elsewhere})
        poll(rlm)
        return stack.rlmm.raise_log_start_offset(*args, **kwargs)

    rlm = polled.leader(raise_log_start_offset=moved_meanwhile)
    put(stack, DISABLED)
    take_turns(rlm, rounds=2)
    assert rlm.led_partitions() == []
    assert NAME not in rlm.lanes.copies.seconds_since_last_success()
    assert tier_is_empty(stack)


@pytest.mark.deep
def test_a_log_that_goes_and_comes_while_it_is_being_disabled_is_led_again(
    stack: Stack, static: Finding, files: PartitionFiles
) -> None:
    elsewhere = static.log_dir.with_name("elsewhere")

    def gone_meanwhile(*args: Any, **kwargs: Any) -> Any:
        shutil.move(files.path, elsewhere)
        turn(rlm.lanes.scan)
        shutil.move(elsewhere, files.path)
        turn(rlm.lanes.scan)
        assert rlm.led_partitions() == []
        return stack.rlmm.raise_log_start_offset(*args, **kwargs)

    rlm = static.leader(raise_log_start_offset=gone_meanwhile)
    put(stack, DISABLED)
    take_turns(rlm, rounds=2)
    assert description(rlm).role is LEADER
    put(stack, ENABLED)
    take_turns(rlm, rounds=2)
    assert_tier_is(stack, files, ALL)


def test_a_source_that_is_called_waits_for_the_call(stack: Stack, files: PartitionFiles) -> None:
    rlm = callback_rlm(stack)
    assert send_role(rlm, LEADER, EPOCH) is None
    take_turns(rlm)
    put(stack, DISABLED)
    take_turns(rlm, rounds=3)
    assert stack.ranges() == ALL


@pytest.mark.deep
@pytest.mark.parametrize("failpoint", ["deletion.log_start_raised", "deletion.marked_some"])
def test_rlm_killed_while_disabling_resumes_after_restart(
    world: World, tmp_path: Path, failpoint: str
) -> None:
    world.ship()
    world.set_retention(DISABLED)
    with rlm_service(world, tmp_path) as rlm:
        run_until_killed(rlm, failpoint)
        assert world.rows()
        kill_and_restart(rlm)
        eventually(lambda: world.rows() == [] and world.object_keys() == [], deadline_ms=60_000)
        world.set_retention({**ENABLED, **DELETABLE})
        eventually(lambda: is_shipped(world), deadline_ms=60_000)
    world.assert_all_shipped()
