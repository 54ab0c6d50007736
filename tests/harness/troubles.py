"""Trouble the managers or files of a deployment, each with one kind of fault."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

from prometheus_client import CollectorRegistry

from services.api.calls import NO_CONTEXT, AtRevision, MutationContext, MutationOutcome
from services.api.errors import InvalidStateTransitionError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partitions import EventQuery
from services.api.remote_log_manager import ProblemKind, all_descriptions
from services.api.remote_log_metadata_manager import SegmentPage, all_events
from services.api.remote_storage_manager import LogSegmentData, SegmentChunk
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.rlm.collectors import TopicCollector
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.metrics import PARTITIONS_BLOCKED
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rsm.manager import ObjectRemoteStorageManager
from tests.harness.invariants import assert_invariants
from tests.harness.retained_log import AT_ONCE, take_turns
from tests.harness.ship_stack import FINISHED, Stack
from tests.harness.wrapper import Wrapper
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, three_segments


class FailingRsm(Wrapper[ObjectRemoteStorageManager]):
    """The real RSM, except for one failing copy or delete."""

    def __init__(self, rsm: ObjectRemoteStorageManager) -> None:
        super().__init__(rsm)
        self.before_copy: Callable[[RemoteLogSegmentMetadata], None] = lambda _: None
        self.after_copy: Callable[[bytes | None], bytes | None] = lambda answer: answer
        self.before_delete: Callable[[], None] = lambda: None

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        self.before_copy(metadata)
        return self.after_copy(self.real.copy_log_segment_data(metadata, data))

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self.before_delete()
        self.real.delete_log_segment_data(metadata)


class FailingRlmm:
    """An RLMM that is unavailable for every call."""

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        self._rlmm = rlmm

    def __getattr__(self, name: str) -> Any:
        assert callable(getattr(self._rlmm, name))
        return raising(RetriableRemoteStorageError("away"))


class GapsRefused(Wrapper[SqlRemoteLogMetadataManager]):
    """The real RLMM, except that it refuses every gap."""

    def record_gap(self, *args: Any, **kwargs: Any) -> Any:
        raise InvalidStateTransitionError("held")


class GapsUnanswered(Wrapper[SqlRemoteLogMetadataManager]):
    """The real RLMM; the responses of some calls that record a gap, counted from 1, are lost.

    Args:
        is_recorded: the call takes effect all the same.
    """

    def __init__(
        self, rlmm: SqlRemoteLogMetadataManager, *, is_recorded: bool, unanswered: set[int]
    ) -> None:
        super().__init__(rlmm)
        self._is_recorded = is_recorded
        self._unanswered = unanswered
        self.calls = 0

    def record_gap(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        is_answered = self.calls not in self._unanswered
        if is_answered or self._is_recorded:
            outcome = self.real.record_gap(*args, **kwargs)
        if not is_answered:
            raise RetriableRemoteStorageError("the connection broke")
        return outcome


class SilentRlmm(Wrapper[SqlRemoteLogMetadataManager]):
    """The real RLMM until it stops responding; counts the requests for its segments.

    Attributes:
        lists: requests for a partition's segments.
        searches: requests for the next segment with transactions.
    """

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        super().__init__(rlmm)
        self.is_silent = False
        self.lists = self.searches = 0

    def list_remote_log_segments(self, *args: Any, **kwargs: Any) -> Any:
        self.lists += 1
        if self.is_silent:
            raise RetriableRemoteStorageError("silent")
        return self.real.list_remote_log_segments(*args, **kwargs)

    def next_segment_with_txn_index(self, *args: Any, **kwargs: Any) -> Any:
        self.searches += 1
        if self.is_silent:
            raise RetriableRemoteStorageError("silent")
        return self.real.next_segment_with_txn_index(*args, **kwargs)


class Hanging:
    """The real manager; calls of one name hang, each counted, until a test releases them."""

    def __init__(self, manager: object, name: str, hanging: Semaphore) -> None:
        self._manager = manager
        self._name = name
        self._hanging = hanging
        self._let_go = Event()

    def let_go(self) -> None:
        self._let_go.set()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._manager, name)

        def hang(*args: Any, **kwargs: Any) -> Any:
            self._hanging.release()
            assert self._let_go.wait(60.0)
            return method(*args, **kwargs)

        return hang if name == self._name else method


class Recording(Wrapper[SqlRemoteLogMetadataManager]):
    """The real RLMM; keeps the arguments of each change."""

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        super().__init__(rlmm)
        self.adds: list[MutationContext] = []
        self.updates: list[tuple[RemoteLogSegmentState, MutationContext]] = []

    def add_remote_log_segment_metadata(
        self,
        metadata: RemoteLogSegmentMetadata,
        context: MutationContext = NO_CONTEXT,
        *,
        lease_ms: int | None = None,
    ) -> MutationOutcome:
        self.adds.append(context)
        return self.real.add_remote_log_segment_metadata(metadata, context, lease_ms=lease_ms)

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        self.updates.append((update.state, context))
        return self.real.update_remote_log_segment_metadata(update, context)


class SizesUnknown(Wrapper[SqlRemoteLogMetadataManager]):
    """The real RLMM, with segments whose copier did not know their size."""

    def list_remote_log_segments(self, *args: Any, **kwargs: Any) -> SegmentPage:
        page = self.real.list_remote_log_segments(*args, **kwargs)
        unknown = (replace(segment, segment_size_in_bytes=-1) for segment in page.segments)
        return replace(page, segments=tuple(unknown))

    def remote_log_segment_metadata(
        self, name: TopicIdPartition, epoch: int, offset: int
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        found = self.real.remote_log_segment_metadata(name, epoch, offset)
        assert found.value is not None
        return replace(found, value=replace(found.value, segment_size_in_bytes=-1))


class LateFinish(Wrapper[SqlRemoteLogMetadataManager]):
    """The real RLMM, with a late finish.

    The first COPY_SEGMENT_FINISHED is answered UNAVAILABLE and takes effect only just before the
    next change.
    """

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        super().__init__(rlmm)
        self._late: list[tuple[RemoteLogSegmentMetadataUpdate, MutationContext]] = []
        self._delayed = False

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        if update.state is FINISHED and not self._delayed:
            self._delayed = True
            self._late.append((update, context))
            raise RetriableRemoteStorageError("the connection broke")
        while self._late:
            self.real.update_remote_log_segment_metadata(*self._late.pop())
        return self.real.update_remote_log_segment_metadata(update, context)


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@dataclass
class FailingOnce:
    """Raises `error` the first time."""

    error: Exception
    calls: list[object] = field(default_factory=list)

    def __call__(self, *arguments: object) -> None:
        self.calls.append(arguments)
        if len(self.calls) == 1:
            raise self.error


class CutWhileCopied(FailingRsm):
    """Cuts the log file after its first chunk was read."""

    def __init__(self, rsm: ObjectRemoteStorageManager, log: Path) -> None:
        super().__init__(rsm)
        self._log = log

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        def chunks() -> Iterator[SegmentChunk]:
            for number, chunk in enumerate(data.chunks):
                yield chunk
                if number == 0:
                    self._log.write_bytes(b"")

        return super().copy_log_segment_data(metadata, LogSegmentData(data.files, chunks()))


WELL = replace(NAME, partition=1)
ALL = [(0, 9), (10, 19)]
Hurt = Callable[[PartitionFiles], object]


class Trouble:
    """Two partitions with offsets 0 to 9 and 10 to 19 rolled; a test steps RLM by hand."""

    def __init__(self, stack: Stack, log_dir: Path) -> None:
        self.stack = stack
        self.files = three_segments(log_dir)
        three_segments(log_dir, WELL)
        self._rsm = FailingRsm(stack.rsm)
        self.rlm = BrokerRemoteLogManager([log_dir], self._rsm, stack.rlmm, AT_ONCE)

    def happens(self, hurt: Hurt, base: int = 0) -> None:
        """Run `hurt` once, when the segment from `base` on was inspected and is about to be
        sent.
        """
        happened: list[bool] = []

        def before_copy(metadata: RemoteLogSegmentMetadata) -> None:
            place = metadata.topic_id_partition, metadata.start_offset
            if place == (NAME, base) and not happened:
                happened.append(True)
                hurt(self.files)

        self._rsm.before_copy = before_copy
        take_turns(self.rlm)
        assert happened

    def problems(self) -> list[tuple[ProblemKind, str]]:
        described = all_descriptions(self.rlm)
        ours = [found for found in described if found.topic_id_partition == NAME]
        return [(p.kind, p.path) for found in ours for p in found.problems]

    def assert_nothing_is_left_over(self) -> None:
        """Assert three objects for each finished segment, and no other row or object.

        The other partition must be in the tier.
        """
        assert_invariants(self.stack.rlmm, [NAME, WELL])
        finished = len(self.stack.ranges(NAME)) + len(self.stack.ranges(WELL))
        assert len(self.stack.keys()) == 3 * finished
        assert self.stack.ranges(WELL) == ALL

    def gaps(self) -> list[str]:
        return [e.kind for e in all_events(self.stack.rlmm, EventQuery(NAME)) if e.kind == "GAP"]

    def blocked(self) -> float:
        """Read the gauge as it is scraped."""
        registry = CollectorRegistry()
        registry.register(TopicCollector(self.rlm.led_partitions))
        value = registry.get_sample_value(PARTITIONS_BLOCKED.name, {"topic": NAME.topic})
        assert value is not None
        return value


GIVE_UP_S = 60.0


class TroubledPartition:
    """The real RSM or RLMM, except for calls of some names about one partition.

    Args:
        trouble: called instead; it may raise, or wait and return.
    """

    def __init__(
        self,
        manager: object,
        partition: TopicIdPartition,
        names: frozenset[str],
        trouble: Callable[[], None],
    ) -> None:
        self._manager: Any = manager
        self._partition = partition
        self._names = names
        self._trouble = trouble

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._manager, name)
        if name not in self._names:
            return method

        def called(about: Any, *args: Any, **kwargs: Any) -> Any:
            if partition_of(about) == self._partition:
                self._trouble()
            return method(about, *args, **kwargs)

        return called


def partition_of(about: TopicIdPartition | RemoteLogSegmentMetadata) -> TopicIdPartition:
    """Return the partition that the first argument of a call names."""
    if isinstance(about, TopicIdPartition):
        return about
    return about.remote_log_segment_id.topic_id_partition


class Hang:
    """Hang until a test lets go, or for a minute."""

    def __init__(self) -> None:
        self._let_go = Event()

    def __call__(self) -> None:
        assert self._let_go.wait(GIVE_UP_S)

    def let_go(self) -> None:
        self._let_go.set()
