"""Files of a broker that go, shrink or change while RLM copies them: no row without its bytes, no
loss that is none, and the next partition does not notice."""

import shutil
from collections.abc import Callable, Iterator

import pytest

from services.api.remote_log_manager import ProblemKind
from services.api.remote_storage_manager import LogSegmentData, SegmentChunk
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.manager import BrokerRemoteLogManager
from tests.harness.retained_log import AT_ONCE, take_turns
from tests.harness.ship_stack import Stack
from tests.harness.troubles import ALL, FailingRsm, Hurt, Trouble
from tests.unit.rlm.kafka_bytes import PartitionFiles, batch


@pytest.fixture
def trouble(stack: Stack) -> Trouble:
    return Trouble(stack, stack.log_dir)


def delete_segment(files: PartitionFiles, base: int = 0) -> None:
    for path in files.path.glob(f"{base:020}.*"):
        path.unlink()


def remove_folder(files: PartitionFiles) -> None:
    shutil.rmtree(files.path)


def rename_folder(files: PartitionFiles) -> None:
    files.path.rename(files.path.with_name(f"{files.path.name}.{'0' * 32}-delete"))


def cut_the_end(files: PartitionFiles) -> None:
    log = files.file(0, ".log")
    log.write_bytes(log.read_bytes()[:-20])


def cut_and_go_on(files: PartitionFiles) -> None:
    """As a broker after an unclean restart: the same offsets, other records."""
    files.segment(0, [batch(0, 5), batch(5, 5, payload=b"another")])


def test_a_segment_that_is_missing_in_the_middle_is_no_loss_but_blocked(trouble: Trouble) -> None:
    """No broker does so: a person may bring it back."""
    trouble.happens(lambda files: delete_segment(files, 10), base=10)
    take_turns(trouble.rlm)
    log = str(trouble.files.file(0, ".log"))
    assert trouble.problems() == [(ProblemKind.TRUNCATED_BATCH, log)]
    assert (trouble.stack.ranges(), trouble.gaps()) == ([(0, 9)], [])
    trouble.assert_nothing_is_left_over()


@pytest.mark.parametrize("base", [0, 10])
@pytest.mark.parametrize("hurt", [remove_folder, rename_folder])
def test_a_folder_that_goes_is_no_loss(trouble: Trouble, hurt: Hurt, base: int) -> None:
    """A broker does so with a partition that is moved, reassigned or deleted."""
    trouble.happens(hurt, base)
    assert ProblemKind.LOST_BEFORE_COPY not in [kind for kind, _ in trouble.problems()]
    take_turns(trouble.rlm)
    assert ProblemKind.LOST_BEFORE_COPY not in [kind for kind, _ in trouble.problems()]
    assert trouble.gaps() == []
    assert trouble.stack.ranges() == [(0, 9)] * (base > 0)
    trouble.assert_nothing_is_left_over()


@pytest.mark.parametrize(
    ("hurt", "after"), [(cut_the_end, ProblemKind.TRUNCATED_BATCH), (cut_and_go_on, None)]
)
def test_a_log_that_is_cut_while_it_is_copied_is_not_registered(
    trouble: Trouble, caplog: pytest.LogCaptureFixture, hurt: Hurt, after: ProblemKind | None
) -> None:
    trouble.happens(hurt)
    log = str(trouble.files.file(0, ".log"))
    assert trouble.problems() == [(ProblemKind.COPY_FAILED, log)]
    assert log in caplog.text
    assert trouble.stack.ranges() == []
    trouble.assert_nothing_is_left_over()
    take_turns(trouble.rlm)
    assert trouble.problems() == ([(after, log)] if after else [])
    assert trouble.stack.ranges() == ([] if after else ALL)
    trouble.assert_nothing_is_left_over()


class WhileSent(FailingRsm):
    """Something happens once the first chunk was taken."""

    def __init__(self, stack: Stack, happens: Callable[[], object]) -> None:
        super().__init__(stack.rsm)
        self._happens = happens

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        def chunks() -> Iterator[SegmentChunk]:
            yield next(rest := iter(data.chunks))
            self._happens()
            yield from rest

        return super().copy_log_segment_data(metadata, LogSegmentData(data.files, chunks()))


@pytest.mark.parametrize("hurt", [delete_segment, remove_folder, rename_folder])
def test_segment_deleted_while_it_is_sent_is_copied_whole(stack: Stack, hurt: Hurt) -> None:
    files = PartitionFiles(stack.log_dir)
    log = files.segment(0, [batch(0, payload=b"x" * 3_000_000)])
    files.snapshot(1)
    files.segment(1, [batch(1)])
    whole = log.read_bytes()
    rsm = WhileSent(stack, lambda: hurt(files))
    rlm = BrokerRemoteLogManager([stack.log_dir], rsm, stack.rlmm, AT_ONCE)
    take_turns(rlm, rounds=2)
    assert stack.ranges() == [(0, 0)]
    assert stack.object_of(stack.segments()[0]).read_bytes() == whole
    assert len(stack.keys()) == 3
