"""The comparison finds every fault of a manager, and no difference between two equal models."""

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
from tests.deep.histories import operations
from tests.deep.histories.model import Model
from tests.deep.histories.mutants import MUTANTS, Mutant
from tests.deep.histories.operations import Operation
from tests.deep.model.comparison import Subject
from tests.deep.model.runs import DifferenceError, Tally, run
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
    """Of the model compared with another one."""
    model = Model()
    return run(SEED, ENOUGH_FOR_CELLS, lambda _: Subject(model, model.trail))


@pytest.mark.parametrize("mutant", first_of(MUTANTS, 3), ids=str)
def test_a_mutant_of_the_model_is_found(mutant: Mutant) -> None:
    model = Model(mutant.partition_class())
    with pytest.raises(Exception, match="--seed") as found:
        run(SEED, OPERATIONS, lambda _: Subject(model, model.trail))
    if isinstance(found.value, DifferenceError):  # or the mutant failed
        assert str(found.value).count("(tp=") < 20


def test_nearly_all_cells_that_can_exist_are_reached(tally: Tally) -> None:
    assert tally.reached_share >= 0.95, tally


def test_every_operation_and_every_refusal_is_met(tally: Tally) -> None:
    kinds = {kind for _, kind in tally.outcomes}
    assert {refusal.__name__ for refusal in REFUSALS} <= kinds
    made = {name for name, _ in tally.outcomes}
    assert made == {
        name
        for name, each in vars(operations).items()
        if isinstance(each, type) and issubclass(each, Operation) and "answer" in vars(each)
    } - {"Operation"}
