"""Test the valid contents of a leader's report and of a partition's state."""

from dataclasses import replace

import pytest

from services.api.errors import InvalidRequestError
from services.api.lineage import Lineage
from services.api.partitions import NOTHING_COPIED, PartitionReport, PartitionState
from services.api.segments import segment_leader_epochs
from tests.unit.api.retention_partition import TP

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
REPORT = PartitionReport(
    topic_id_partition=TP,
    broker_id=1,
    leader_epoch=4,
    report_number=2,
    lineage=Lineage(segment_leader_epochs([(0, 100)])),
    local_log_start_offset=100,
    log_end_offset=300,
    high_watermark=250,
    last_stable_offset=240,
    only_local_bytes=1024,
    copied_through_offset=199,
)
LEAST_AND_LARGEST = [
    ("broker_id", -1, INT32_MAX),
    ("leader_epoch", 0, INT32_MAX),
    ("report_number", 0, INT64_MAX),
    ("local_log_start_offset", 0, INT64_MAX),
    ("only_local_bytes", 0, INT64_MAX),
    ("copied_through_offset", NOTHING_COPIED, INT64_MAX),
    ("high_watermark", 0, 300),
    ("last_stable_offset", 0, 300),
]


def with_value(field: str, value: int) -> PartitionReport:
    return replace(REPORT, **{field: value})  # type: ignore[arg-type]  # each is an int field


@pytest.mark.parametrize(("field", "least", "largest"), LEAST_AND_LARGEST)
def test_a_figure_of_a_report_goes_from_its_least_to_its_largest(
    field: str, least: int, largest: int
) -> None:
    for value in (least, largest):
        assert getattr(with_value(field, value), field) == value


@pytest.mark.parametrize(("field", "least", "largest"), LEAST_AND_LARGEST)
def test_a_figure_out_of_bounds_is_refused_by_name(field: str, least: int, largest: int) -> None:
    for value in (least - 1, largest + 1):
        with pytest.raises(InvalidRequestError, match=f"^{field}: must "):
            with_value(field, value)


def test_no_leader_has_an_epoch_above_its_own() -> None:
    epochs = Lineage(segment_leader_epochs([(0, 0), (5, 100)]))
    assert replace(REPORT, lineage=epochs, leader_epoch=5).lineage == epochs
    with pytest.raises(InvalidRequestError, match=r"^leader_epochs: has 5, above leader_epoch 4"):
        replace(REPORT, lineage=epochs)


@pytest.mark.parametrize("value", [-1, INT64_MAX + 1])
def test_a_log_end_out_of_bounds_is_refused(value: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"^log_end_offset: .* is {value}"):
        with_value("log_end_offset", value)


def test_the_refusal_names_the_log_end_that_is_exceeded() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        with_value("high_watermark", 301)
    assert str(refused.value) == "high_watermark: must not be above log_end_offset 300"


def test_an_empty_log_can_be_reported() -> None:
    empty = replace(
        REPORT,
        lineage=Lineage(),
        local_log_start_offset=0,
        log_end_offset=0,
        high_watermark=0,
        last_stable_offset=0,
        only_local_bytes=0,
        copied_through_offset=NOTHING_COPIED,
    )
    assert empty.log_end_offset == 0


def test_a_report_is_as_old_as_the_databases_clock_says() -> None:
    state = PartitionState(report=REPORT, reported_at_ms=1_000, read_at_ms=1_250)
    assert state.report_age_ms == 250


def test_without_a_report_there_is_no_age() -> None:
    state = PartitionState(read_at_ms=1_250)
    assert state.report_age_ms is None
    assert (state.log_start_offset, state.lineage, state.report) == (0, Lineage(), None)
