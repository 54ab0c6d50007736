"""RLMM answers as the reference model does, for random calls in any order.

`python -m tests.deep.model` compares at length; here is a share of it, another one in each run.
"""

import random
import sys
from collections.abc import Iterator

import pytest

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.segments import RemoteLogSegmentMetadataUpdate
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.deep.model.comparison import Subject
from tests.deep.model.runs import GRPC_SHARE, DifferenceError, run
from tests.deep.model.subjects import subjects

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1_200)]

IN_PROCESS, OVER_GRPC = 900, 120
"""Operations in each run of the tests: half a minute, and much longer on a busy machine."""


@pytest.fixture(scope="module")
def database(rlmm_database_url: str) -> str:
    """One for all sequences: each has topics of its own."""
    return rlmm_database_url


@pytest.fixture(scope="module")
def both(database: str) -> Iterator[tuple[Subject, Subject]]:
    """RLMM in process, and over gRPC."""
    with subjects(database) as both:
        yield both


@pytest.fixture
def seed(capsys: pytest.CaptureFixture[str]) -> int:
    """Return the seed of the first sequence, and print it, so that a run can be repeated."""
    seed = random.randrange(10**9) // GRPC_SHARE * GRPC_SHARE
    with capsys.disabled():
        sys.stdout.write(f"\nseed {seed}: python -m tests.deep.model --seed {seed}\n")
    return seed


def test_rlmm_in_process_answers_as_the_model(both: tuple[Subject, Subject], seed: int) -> None:
    tally = run(seed, IN_PROCESS, lambda _: both[0])
    assert tally.operations >= IN_PROCESS


def test_rlmm_over_grpc_answers_as_the_model(both: tuple[Subject, Subject], seed: int) -> None:
    tally = run(seed, OVER_GRPC, lambda _: both[1])
    assert tally.operations >= OVER_GRPC


class _EmptyIsAbsent(SqlRemoteLogMetadataManager):
    """A fault: custom metadata that is empty is taken for none."""

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        if update.custom_metadata == b"":
            update = RemoteLogSegmentMetadataUpdate(
                update.remote_log_segment_id,
                update.event_timestamp_ms,
                update.state,
                update.broker_id,
            )
        return super().update_remote_log_segment_metadata(update, context)


@pytest.fixture
def faulty(both: tuple[Subject, Subject], database: str) -> Iterator[Subject]:
    engine = create_database_engine(database)
    yield Subject(_EmptyIsAbsent(engine), both[0].trail_of)
    engine.dispose()


def test_a_fault_of_a_real_manager_is_found_and_reported_in_a_few_lines(faulty: Subject) -> None:
    with pytest.raises(DifferenceError, match=r"^seed \d+, at operation \d+ of the run") as found:
        run(2, 900, lambda _: faulty)
    assert 2 <= str(found.value).count("(tp=") <= 3
    assert "custom_metadata=b''" in str(found.value)
