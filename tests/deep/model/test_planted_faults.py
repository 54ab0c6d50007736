"""The comparison finds every planted fault, and no difference between two equal models."""

import pytest

from services.api.errors import (
    ConcurrentUpdateError,
    CustomMetadataTooLargeError,
    DeletionRefusedError,
    FencedLeaderEpochError,
    InvalidRangeError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    SegmentAlreadyExistsError,
)
from tests.deep.model import operations
from tests.deep.model.comparison import Tally, reference_subject
from tests.deep.model.operations import Operation
from tests.deep.model.planted_faults import FAULTS, Fault, manager_with
from tests.deep.model.reference import ReferenceRemoteLogMetadataManager
from tests.deep.model.runs import DifferenceError, reached_share, report, run
from tests.harness.variants import first_of

SEED = 1
OPERATIONS = 30_000
ENOUGH_FOR_CELLS = 9_000
REFUSALS = {
    ConcurrentUpdateError,
    CustomMetadataTooLargeError,
    DeletionRefusedError,
    FencedLeaderEpochError,
    InvalidRangeError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    SegmentAlreadyExistsError,
}


@pytest.fixture(scope="module")
def tally() -> Tally:
    """Of the model held against another one."""
    subject = reference_subject(ReferenceRemoteLogMetadataManager())
    return run(SEED, ENOUGH_FOR_CELLS, lambda _: subject)


@pytest.mark.parametrize("fault", first_of(FAULTS, 3), ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found_and_shown_in_a_few_lines(fault: Fault) -> None:
    subject = reference_subject(manager_with(fault))
    with pytest.raises(DifferenceError, match="the model: ") as found:
        run(SEED, OPERATIONS, lambda _: subject)
    _, _, script = str(found.value).partition("[\n")
    assert 2 <= len(script.partition("\n        ]")[0].splitlines()) <= 9


def test_nearly_all_cells_that_can_exist_are_reached(tally: Tally) -> None:
    assert reached_share(tally) >= 0.95, "\n".join(report(tally))


def test_every_operation_and_every_refusal_is_met(tally: Tally) -> None:
    kinds = {kind for _, kind in tally.outcomes}
    assert {refusal.__name__ for refusal in REFUSALS} <= kinds
    made = {name for name, _ in tally.outcomes}
    assert made == {
        name
        for name, each in vars(operations).items()
        if isinstance(each, type) and issubclass(each, Operation) and "answer" in vars(each)
    } - {"Operation"}
