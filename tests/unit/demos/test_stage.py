"""Test when a demo considers its log shipped."""

from typing import cast

import pytest

from demos.stage import wait_until_shipped
from services.api.remote_log_manager import (
    DescribePage,
    PartitionDescription,
    Problem,
    ProblemKind,
    RemoteLogManager,
)
from tests.unit.rlm.kafka_bytes import NAME


def description(pending: int, *problems: Problem) -> PartitionDescription:
    return PartitionDescription(
        topic_id_partition=NAME,
        leader_id=1,
        leader_epoch=0,
        log_start_offset=0,
        local_log_start_offset=0,
        last_stable_offset=30,
        log_end_offset=30,
        copied_through_offset=-1,
        local_segments=4,
        local_size_bytes=400,
        lag_segments=pending,
        lag_bytes=100 * pending,
        remote_segments=3 - pending,
        remote_size_bytes=100 * (3 - pending),
        problems=problems,
    )


class Telling:
    """An RLM with another report each time."""

    def __init__(self, *reported: PartitionDescription) -> None:
        self._told = list(reported)

    def describe_partitions(self, topics: object = (), *, page_token: str = "") -> DescribePage:
        return DescribePage((self._told.pop(0),), "")


def problem(kind: ProblemKind, blocked: int) -> Problem:
    return Problem(kind, "/log", "why", blocked_segments=blocked)


def waited_for(*reported: PartitionDescription) -> PartitionDescription:
    (last,) = wait_until_shipped(cast(RemoteLogManager, Telling(*reported)))
    return last


def test_wait_continues_while_a_service_is_unavailable() -> None:
    done = description(0)
    assert waited_for(description(2, problem(ProblemKind.STORE_UNAVAILABLE, 2)), done) is done


@pytest.mark.parametrize("kind", [ProblemKind.TRUNCATED_BATCH, ProblemKind.COPY_FAILED])
def test_wait_ends_at_a_problem_that_no_pass_repairs(kind: ProblemKind) -> None:
    blocked = description(2, problem(kind, 2))
    assert waited_for(description(3), blocked) is blocked
