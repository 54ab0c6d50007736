"""Test the service's descriptions of its partitions."""

import shutil
from uuid import UUID

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import Problem, ProblemKind, all_descriptions
from services.rlm.describe import PageDescriber
from services.rlm.kafka_log.local_log import LocalPartition
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.partition import new_partition
from tests.harness.ship_stack import Stack, description, names_of
from tests.harness.troubles import FailingRlmm, SilentRlmm
from tests.unit.rlm.kafka_bytes import NAME, three_segments


def test_the_service_copies_and_describes(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    rlm = stack.rlm()
    before = description(rlm)
    assert (before.lag_segments, before.copied_through_offset) == (2, -1)
    rlm.lanes.copies.tick()
    assert rlm.lanes.copies.wait_idle(30.0)
    after = description(rlm)
    assert (after.leader_id, after.leader_epoch) == (7, 0)
    assert (after.log_start_offset, after.log_end_offset) == (0, 25)
    assert (after.lag_segments, after.copied_through_offset) == (0, 19)
    assert (after.local_segments, after.remote_segments) == (3, 2)
    assert after.remote_size_bytes == sum(
        files.file(base, ".log").stat().st_size for base in (0, 10)
    )
    rlm.stop(1.0)


def test_a_silent_database_is_asked_once_for_a_page(stack: Stack) -> None:
    names = [TopicIdPartition(NAME.topic_id, NAME.topic, number) for number in range(4)]
    for name in names:
        three_segments(stack.log_dir, name)
    stack.ship()
    shutil.rmtree(stack.log_dir / "t-1")
    rlmm = SilentRlmm(stack.rlmm)
    rlmm.is_silent = True
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, rlmm)
    page = rlm.describe_partitions()
    assert rlmm.lists == 1
    assert names_of(page.partitions) == [("t", 0), ("t", 2), ("t", 3)]
    kinds = [[p.kind for p in found.problems] for found in page.partitions]
    assert kinds == [[ProblemKind.STORE_UNAVAILABLE]] * 3
    assert [p.kind for p in page.log_dir_problems] == [ProblemKind.STORE_UNAVAILABLE]
    rlmm.is_silent = False
    assert len(rlm.describe_partitions().partitions) == 4


def test_filtered_description_shows_nothing_of_other_topics(stack: Stack) -> None:
    three_segments(stack.log_dir)
    three_segments(stack.log_dir, TopicIdPartition(UUID(int=5), "payroll", 0))
    (stack.log_dir / "payroll-0" / "partition.metadata").unlink()
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, stack.rlmm)
    assert "payroll" in repr(rlm.describe_partitions())
    of_one_topic = rlm.describe_partitions([NAME.topic])
    assert names_of(of_one_topic.partitions) == [(NAME.topic, 0)]
    assert "payroll" not in repr(of_one_topic)


def test_many_problems_are_listed_in_part_and_counted(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    partition = next(iter(find_partitions([stack.log_dir]).partitions.values()))
    problems = tuple(
        Problem(ProblemKind.COPY_FAILED, str(files.path), f"no {number}", number, 2)
        for number in range(50)
    )
    sick = new_partition(NAME, LocalPartition(partition), stack.rsm, stack.rlmm)
    sick.copy.record(problems)
    ((found,), _) = PageDescriber(7).page([sick])
    assert found.problems[:20] == problems[:20]
    assert [p.message for p in found.problems[20:]] == ["and 30 more"]
    assert sum(p.blocked_segments for p in found.problems) == 100


def test_a_page_ends_early_if_there_are_too_many_problems(stack: Stack) -> None:
    for number in range(120):
        three_segments(stack.log_dir, TopicIdPartition(NAME.topic_id, NAME.topic, number))
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, FailingRlmm(stack.rlmm))
    page = rlm.describe_partitions(page_size=1000)
    assert len(page.partitions) == 120
    for name in [d.topic_id_partition for d in page.partitions]:
        rlm._roles.partition(name).copy.record(
            tuple(Problem(ProblemKind.COPY_FAILED, "p", "", n) for n in range(20))
        )
    page = rlm.describe_partitions(page_size=1000)
    assert len(page.partitions) < 120
    assert len(list(all_descriptions(rlm))) == 120
