"""Test reports of many partitions whose brokers have forgotten leader epochs that the tier has."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from services.api.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    ThrottledError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.common.log import LINES_PER_WINDOW
from services.rlm.manager import BrokerRemoteLogManager
from tests.behaviour.test_lost_local_logs import copy, lose_beginning, report
from tests.harness.retained_log import AT_ONCE, Changed, hourly_log, take_turns
from tests.harness.ship_stack import Stack
from tests.unit.rlm.kafka_bytes import NAME

NAMES = [replace(NAME, partition=number) for number in range(12)]
KEPT_WHOLE = NAMES[9:]
FORGOTTEN = NAMES[:9]
PASSES = 10
ALL_AT_ONCE = replace(AT_ONCE, copier_threads=len(NAMES), expiration_threads=len(NAMES))


@pytest.fixture(autouse=True)
def logs(stack: Stack) -> None:
    """Provide logs that are all in the tier and never reported, with little left on most
    brokers.
    """
    files = {name: hourly_log(stack.log_dir, name, rolled=4) for name in NAMES}
    copy(stack.rlm(limits=ALL_AT_ONCE))
    for name in FORGOTTEN:
        lose_beginning(files[name], 40, (2, 40))


class Epochs:
    """The real RSM, except that `error` withholds LEADER_EPOCH indexes."""

    def __init__(self, stack: Stack) -> None:
        self.asked: list[TopicIdPartition] = []
        self.error: Callable[[TopicIdPartition], RemoteStorageError | None] = lambda _: None
        self._rsm = stack.rsm
        self.rsm: Any = Changed(stack.rsm, fetch_index=self._fetch)

    def _fetch(
        self, segment: RemoteLogSegmentMetadata, kind: IndexType, **how: bool
    ) -> Iterator[bytes]:
        name = segment.remote_log_segment_id.topic_id_partition
        self.asked.append(name)
        error = self.error(name)
        if error is not None:
            raise error
        return self._rsm.fetch_index(segment, kind, **how)


@pytest.fixture
def epochs(stack: Stack) -> Epochs:
    return Epochs(stack)


@pytest.fixture
def rlm(stack: Stack, epochs: Epochs) -> BrokerRemoteLogManager:
    """Provide a restarted RLM that has read all of its partitions and has nothing to copy."""
    made = stack.rlm(rsm=epochs.rsm, limits=ALL_AT_ONCE)
    copy(made)
    assert epochs.asked == []
    return made


def reported(stack: Stack) -> list[TopicIdPartition]:
    return [name for name in NAMES if stack.rlmm.partition_state(name).value.report is not None]


@pytest.mark.deep
@pytest.mark.parametrize("error", [RetriableRemoteStorageError("away"), ThrottledError("full")])
def test_while_rsm_is_away_one_call_per_pass_and_other_reports_continue(
    stack: Stack, rlm: BrokerRemoteLogManager, epochs: Epochs, error: RemoteStorageError
) -> None:
    epochs.error = lambda _: error
    report(rlm)
    assert epochs.asked == FORGOTTEN[:1]
    assert reported(stack) == KEPT_WHOLE
    for _ in FORGOTTEN[1:]:
        report(rlm)
    assert sorted(epochs.asked, key=FORGOTTEN.index) == FORGOTTEN  # each in its turn
    epochs.error = lambda _: None
    report(rlm)
    assert reported(stack) == NAMES


@pytest.mark.deep
def test_a_pass_that_broke_off_ends_as_retriable(
    rlm: BrokerRemoteLogManager, epochs: Epochs, limited_log: pytest.LogCaptureFixture
) -> None:
    epochs.error = lambda _: RetriableRemoteStorageError("away")
    for _ in range(PASSES):
        report(rlm)
    result = [r.getMessage() for r in limited_log.records]
    assert 0 < len(result) <= LINES_PER_WINDOW
    assert all("reporter: a task failed" in line and line.endswith("away") for line in result)
    assert {record.exc_info for record in limited_log.records} == {None}


@pytest.mark.deep
def test_unreadable_location_delays_other_reports_by_one_pass(
    stack: Stack, rlm: BrokerRemoteLogManager, epochs: Epochs
) -> None:
    sick = FORGOTTEN[3]
    away = RetriableRemoteStorageError("its location is away")
    epochs.error = lambda name: away if name == sick else None
    report(rlm)
    assert reported(stack) == [*FORGOTTEN[:3], *KEPT_WHOLE]
    report(rlm)
    assert reported(stack) == [name for name in NAMES if name != sick]


@pytest.mark.deep
def test_lost_index_does_not_delay_other_reports(
    stack: Stack, rlm: BrokerRemoteLogManager, epochs: Epochs
) -> None:
    lost = RemoteResourceNotFoundError("no such index")
    epochs.error = lambda name: lost if name == FORGOTTEN[0] else None
    report(rlm)
    assert reported(stack) == NAMES[1:]


@pytest.mark.deep
def test_however_many_are_lost_they_do_not_fill_the_log(
    stack: Stack, rlm: BrokerRemoteLogManager, epochs: Epochs, limited_log: pytest.LogCaptureFixture
) -> None:
    epochs.error = lambda _: RemoteResourceNotFoundError("no such index")
    for _ in range(PASSES):
        report(rlm)
    assert len(epochs.asked) == PASSES * len(FORGOTTEN)
    result = [r for r in limited_log.records if "interval: cannot read the tier" in r.getMessage()]
    assert len(result) == LINES_PER_WINDOW


@pytest.mark.deep
def test_reports_that_are_refused_again_and_again_do_not_fill_the_log(
    stack: Stack, limited_log: pytest.LogCaptureFixture
) -> None:
    def busy(reports: Any) -> Any:
        return [RetriableRemoteStorageError("the partition is locked")] * len(reports)

    rlmm: Any = Changed(stack.rlmm, report_partition_state=busy)
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, rlmm, ALL_AT_ONCE)
    copy(rlm)
    for _ in range(PASSES):
        report(rlm)
    result = [r for r in limited_log.records if "refused the report" in r.getMessage()]
    assert len(result) == LINES_PER_WINDOW


@pytest.mark.deep
def test_retention_fails_as_retriable_too(
    stack: Stack, rlm: BrokerRemoteLogManager, epochs: Epochs, caplog: pytest.LogCaptureFixture
) -> None:
    epochs.error = lambda _: RetriableRemoteStorageError("away")
    stack.rlmm.put_topic_config(NAME.topic_id, {"retention.ms": "0"}, now=True)
    take_turns(rlm)
    of_retention = [r for r in caplog.records if "expiration: a task failed" in r.getMessage()]
    assert {record.exc_info for record in of_retention} == {None}
    assert len(of_retention) == len(FORGOTTEN)
