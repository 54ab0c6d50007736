"""Test `sediment partitions undelete` and `reset-epoch`: audited, and refused in one line."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from services.api.calls import MutationContext
from services.api.errors import FencedLeaderEpochError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.remote_log_metadata_manager import PartitionLeadership, all_partitions
from services.local.stack import own_environment
from tests.contract.rlmm.segments import (
    BROKER,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    finished,
    put_deletion,
    revision_of,
)
from tests.harness import served_fixtures
from tests.harness.processes import RlmmProcess
from tests.harness.tier import a_topic

WHY = "--reason=a mistake"

rlmm = served_fixtures.rlmm


@pytest.fixture
def tp(rlmm: RlmmProcess) -> TopicIdPartition:
    """Provide partition 1 of a topic of the test's own; its highest leader epoch is 900."""
    tps = a_topic("orders", 2)
    leaders = [PartitionLeadership(each, 900) for each in tps]
    rlmm.client.on_partition_leadership_changes(leaders, [], BROKER)
    return tps[1]


def delete_states(rlmm: RlmmProcess, tp: TopicIdPartition) -> list[object]:
    return [each.delete_state for each in all_partitions(rlmm.client, topic=tp.topic)]


def highest_is_below(rlmm: RlmmProcess, tp: TopicIdPartition, epoch: int) -> bool:
    """Return whether a leader of that epoch may mark the partition as deleted; remove the mark
    again.
    """
    try:
        put_deletion(rlmm.client, tp, MARKED, context=MutationContext(broker_leader_epoch=epoch))
    except FencedLeaderEpochError:
        return False
    rlmm.client.undelete_partition(tp)
    return True


def test_a_marked_partition_is_brought_back_alone(rlmm: RlmmProcess, tp: TopicIdPartition) -> None:
    finished(rlmm.client, tp, 0, 9)
    rlmm.answers("topics", "delete", tp.topic, "--yes")
    (first,) = rlmm.answers("partitions", "undelete", f"{tp.topic}-1", WHY)
    assert first["applied"]
    assert (first["topic"], first["partition"]) == (tp.topic, 1)
    assert delete_states(rlmm, tp) == [MARKED, None]
    (again,) = rlmm.answers("partitions", "undelete", f"{tp.topic}-1", WHY)
    assert (again["applied"], again["revision"]) == (False, first["revision"])
    (event,) = rlmm.answers("events", f"{tp.topic}-1", "--after-revision=4")
    assert (event["kind"], event["reason"]) == ("PARTITION_DELETE", "a mistake")
    shown = rlmm.sediment("events", f"{tp.topic}-1", "-o", "wide").stdout.splitlines()
    assert shown[-1].split()[1:4] == ["none", "-", "DELETE_MARKED"]


def test_undelete_reports_its_result_in_one_line(rlmm: RlmmProcess, tp: TopicIdPartition) -> None:
    put_deletion(rlmm.client, tp, MARKED)
    name = f"{uuid_to_text(tp.topic_id)}:{tp.topic}"
    when = r"\d{4}-\d\d-\d\dT[\d:]{8}Z"
    for text in (
        f"was marked for deletion at {when}; the mark is removed",
        "was not marked for deletion",
    ):
        done = rlmm.sediment("partitions", "undelete", f"{name}-1", WHY)
        assert (done.returncode, done.stdout) == (0, "")
        assert re.fullmatch(rf"{tp.topic}-1: {text} \(revision 3\)\n", done.stderr)


def test_undelete_of_a_begun_removal_is_refused_in_one_line(
    rlmm: RlmmProcess, tp: TopicIdPartition
) -> None:
    put_deletion(rlmm.client, tp, MARKED, PARTITION_STARTED)
    line = rlmm.refusal("partitions", "undelete", f"{tp.topic}-1", WHY)
    assert f"{tp.topic}-1 cannot be restored: " in line
    assert "its removal has begun and cannot be undone" in line


def test_a_leader_epoch_is_reset_when_asked_for_twice(
    rlmm: RlmmProcess, tp: TopicIdPartition
) -> None:
    command = ("partitions", "reset-epoch", f"{tp.topic}-1", "--epoch=5", WHY)
    line = rlmm.refusal(*command)
    assert "highest broker leader epoch from 900 to 5 " in line
    assert "every broker with leader epoch 5 or higher" in line
    assert line.endswith("pass --yes to confirm")
    assert revision_of(rlmm.client, tp) == 1
    (done,) = rlmm.answers(*command, "--yes")
    assert (done["applied"], done["revision"]) == (True, 2)
    (again,) = rlmm.answers(*command, "--yes")
    assert (again["applied"], again["revision"]) == (False, 2)
    (event,) = rlmm.answers("events", f"{tp.topic}-1", "--after-revision=1")
    assert (event["kind"], event["from_state"], event["to_state"]) == (
        "LEADER_EPOCH_RESET",
        "900",
        "5",
    )
    assert event["reason"] == "a mistake"
    assert "LEADER_EPOCH_RESET 5" in rlmm.sediment("events", f"{tp.topic}-1").stdout
    assert not highest_is_below(rlmm, tp, 4)
    assert highest_is_below(rlmm, tp, 5)


def test_no_epoch_at_all_may_be_set(rlmm: RlmmProcess, tp: TopicIdPartition) -> None:
    done = rlmm.sediment("partitions", "reset-epoch", f"{tp.topic}-1", "--epoch=-1", WHY, "--yes")
    reported = "highest broker leader epoch: from 900 to none (revision 2)"
    assert done.stderr == f"{tp.topic}-1: {reported}\n"
    again = rlmm.sediment("partitions", "reset-epoch", f"{tp.topic}-1", "--epoch=-1", WHY, "--yes")
    assert again.stderr.endswith(": none, as before (revision 2)\n")
    assert highest_is_below(rlmm, tp, 0)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("answer", "code", "revision"), [("n", 2, 1), ("y", 0, 2)], ids=["no", "yes"]
)
def test_on_a_terminal_a_reset_is_asked_about(
    rlmm: RlmmProcess, tp: TopicIdPartition, answer: str, code: int, revision: int
) -> None:
    done = reset_when_asked(rlmm, tp, answer)
    assert "epoch from 900 to 5 " in done.stderr
    assert "Continue? [y/N]" in done.stderr
    assert (done.returncode, revision_of(rlmm.client, tp)) == (code, revision)
    assert ("nothing was changed" in done.stderr) is (answer == "n")


@pytest.mark.deep
def test_epoch_changed_during_the_prompt_is_not_reset(
    rlmm: RlmmProcess, tp: TopicIdPartition
) -> None:
    def raise_it() -> None:
        rlmm.client.on_partition_leadership_changes([PartitionLeadership(tp, 901)], [], BROKER)

    done = reset_when_asked(rlmm, tp, "y", raise_it)
    assert done.returncode == 2
    line = f"{tp.topic}-1 changed meanwhile from 900 to 901; this command changed nothing"
    assert line in done.stderr
    assert highest_is_below(rlmm, tp, 901)
    assert not highest_is_below(rlmm, tp, 900)


@pytest.mark.deep
def test_other_changes_during_the_prompt_do_not_stop_the_reset(
    rlmm: RlmmProcess, tp: TopicIdPartition
) -> None:
    done = reset_when_asked(rlmm, tp, "y", lambda: finished(rlmm.client, tp, 0, 9))
    assert done.returncode == 0, done.stderr
    assert highest_is_below(rlmm, tp, 5)


@pytest.mark.deep
def test_removal_during_the_prompt_is_reported_in_one_line(
    rlmm: RlmmProcess, tp: TopicIdPartition
) -> None:
    def remove() -> None:
        put_deletion(rlmm.client, tp, MARKED, PARTITION_STARTED, PARTITION_FINISHED)

    done = reset_when_asked(rlmm, tp, "y", remove)
    assert done.returncode == 2
    assert f"sediment: {tp.topic}-1 is not in the tier, or was removed meanwhile: " in done.stderr


def reset_when_asked(
    rlmm: RlmmProcess,
    tp: TopicIdPartition,
    answer: str,
    meanwhile: Callable[[], object] = lambda: None,
) -> "subprocess.CompletedProcess[str]":
    """Run `reset-epoch` to 5 on a terminal, and answer its question after `meanwhile`.

    `meanwhile` begins when the command asks.
    """
    ours, theirs = pty.openpty()
    command = ["partitions", "reset-epoch", f"{tp.topic}-1", "--epoch=5", WHY]
    process = subprocess.Popen(
        [sys.executable, "-m", "services.cli", *command],
        env=own_environment({"SEDIMENT_RLMM": rlmm.address}),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stderr is not None
        asked = b""
        while b"[y/N]" not in asked:
            read = os.read(process.stderr.fileno(), 4096)
            assert read, asked
            asked += read
        meanwhile()
        os.write(ours, f"{answer}\n".encode())
        output, rest = process.communicate(timeout=120)
    os.close(ours)
    os.close(theirs)
    reported = (asked + rest).decode()
    return subprocess.CompletedProcess(command, process.returncode, output.decode(), reported)
