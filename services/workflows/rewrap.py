"""Rewrap the data keys of all segments that RLMM knows, or count which keys they use."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from services.api.errors import (
    ConcurrentUpdateError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.imported_segments import is_imported
from services.api.operations import RunCounts, RunKind, RunOutcome, ToolRun
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_partitions,
    all_segments,
    all_tool_runs,
)
from services.api.segment_objects import KeysInUse, SegmentKey, SegmentObjects
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.common.batches import batches
from services.common.failpoints import failpoint

PARALLEL = 8
MAX_REASONS = 20
_BATCH = 50
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(slots=True)
class Rewrapped:
    """What a run saw and did.

    Attributes:
        run_id: of this run, or of the one that it went on with.
        keys: segments by location and key id, as they are now; "" for manifests without a seal.
        problems: why the ring cannot unwrap a key, by key id; the first of each.
        gone: segments that were deleted meanwhile.
        failed: segments with another error, as `reasons` explains, at most MAX_REASONS.
        topics_before: topics that the run had done before it was cut short.
    """

    ring: KeysInUse
    run_id: str = ""
    segments: int = 0
    changed: int = 0
    gone: int = 0
    failed: int = 0
    topics_before: int = 0
    keys: Counter[tuple[int, str]] = field(default_factory=Counter)
    problems: dict[str, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def count(self, segment: RemoteLogSegmentMetadata, outcome: SegmentKey | Exception) -> None:
        """Count the outcome of one segment."""
        self.segments += 1
        if isinstance(outcome, SegmentKey):
            self.keys[outcome.location_id, outcome.key_id] += 1
            self.changed += outcome.is_changed
            if outcome.problem:
                self.problems.setdefault(outcome.key_id, outcome.problem)
        elif isinstance(outcome, RemoteResourceNotFoundError):
            self.gone += 1
        else:
            self.failed += 1
            if len(self.reasons) < MAX_REASONS:
                self.reasons.append(f"{segment.remote_log_segment_id}: {outcome}")


@dataclass(eq=False)
class KeyRun:
    """Go through the finished segments topic by topic, some batches at a time.

    Attributes:
        topic_ids: only of these topics; empty: of all.
        from_key: only segments that use this key; "": all.
    """

    rlmm: RemoteLogMetadataManager
    objects: SegmentObjects
    topic_ids: frozenset[UUID] = frozenset()
    from_key: str = ""
    on_progress: Callable[[Rewrapped], None] = lambda _: None
    parallel: int = PARALLEL

    def look(self) -> Rewrapped:
        """Count the keys in use, and unwrap each data key; change nothing."""
        done = Rewrapped(self.objects.rewrap_keys([], dry_run=True))
        for partitions in self._topics().values():
            self._go_through(partitions, done, self._seen)
        return done

    def rewrap(self) -> Rewrapped:
        """Rewrap, and record each topic in RLMM when it is done.

        A run that was cut short under the same current key is continued after its last topic.
        Raises RetriableRemoteStorageError if RLMM or RSM is unreachable: run it again.
        """
        done = Rewrapped(self.objects.rewrap_keys([]))
        done.run_id, before = self._unfinished(done.ring.current)
        for topic_id, partitions in self._topics().items():
            if topic_id in before:
                done.topics_before += 1
                continue
            of_topic = Rewrapped(done.ring)
            self._go_through(partitions, of_topic, self._changed, done)
            self._record(done.run_id, topic_id, of_topic)
        self._record(done.run_id, None, done)
        return done

    def _topics(self) -> Mapping[UUID, Sequence[TopicIdPartition]]:
        """Return the partitions of each topic, in order of topic ids."""
        found: dict[UUID, list[TopicIdPartition]] = {}
        for each in all_partitions(self.rlmm):
            tp = each.topic_id_partition
            if not self.topic_ids or tp.topic_id in self.topic_ids:
                found.setdefault(tp.topic_id, []).append(tp)
        return dict(sorted(found.items()))

    def _unfinished(self, current: str) -> tuple[str, set[UUID]]:
        """Return the run to continue, or a new one, and the topics that it has done.

        A run over some topics is never continued, and is none that one over all goes on with.
        """
        if self.topic_ids:
            return f"{uuid4().hex} {self._scope()} {current}, some topics", set()
        runs = [each for each in all_tool_runs(self.rlmm) if each.kind is RunKind.REWRAP]
        ended = {each.run_id for each in runs if each.counts.topic_id is None}
        scope = f"{self._scope()} {current}"
        cut_short = [r for r in runs if r.run_id.endswith(scope) and r.run_id not in ended]
        if not cut_short:
            return f"{uuid4().hex} {scope}", set()
        run_id = max(cut_short, key=lambda each: each.last_ended_ms).run_id
        return run_id, {
            each.counts.topic_id
            for each in cut_short
            if each.run_id == run_id
            and each.outcome is RunOutcome.DONE
            and each.counts.topic_id is not None
        }

    def _scope(self) -> str:
        """Return what distinguishes runs over other segments."""
        return f"from {self.from_key or 'all'} to"

    def _record(self, run_id: str, topic_id: UUID | None, done: Rewrapped) -> None:
        outcome = RunOutcome.PARTIAL if done.failed else RunOutcome.DONE
        sound = done.segments - done.failed - done.gone
        counts = RunCounts(topic_id, done.segments, sound, 0, done.failed)
        self.rlmm.report_tool_run(ToolRun(RunKind.REWRAP, run_id, outcome), [counts])

    def _go_through(
        self,
        partitions: Sequence[TopicIdPartition],
        done: Rewrapped,
        work: "Callable[[Sequence[RemoteLogSegmentMetadata]], _Outcomes]",
        total: Rewrapped | None = None,
    ) -> None:
        with ThreadPoolExecutor(self.parallel, "keys") as pool:
            for group in batches(_segments(self.rlmm, partitions), self.parallel * _BATCH):
                for outcomes in pool.map(work, batches(group, _BATCH)):
                    for segment, outcome in outcomes:
                        for each in (done,) if total is None else (done, total):
                            each.count(segment, outcome)
                    failpoint("rewrap.some")
                self.on_progress(total or done)

    def _seen(self, segments: Sequence[RemoteLogSegmentMetadata]) -> "_Outcomes":
        outcomes = self.objects.rewrap_keys(segments, dry_run=True).outcomes
        return list(zip(segments, outcomes, strict=True))

    def _changed(self, segments: Sequence[RemoteLogSegmentMetadata]) -> "_Outcomes":
        """Rewrap segments; one that changed meanwhile, as by a repair, is tried once more."""
        if self.from_key:
            segments = [
                segment
                for segment, outcome in self._seen(segments)
                if isinstance(outcome, SegmentKey) and outcome.key_id == self.from_key
            ]
        outcomes = self._rewrapped(segments)
        again = [s for s, outcome in outcomes if isinstance(outcome, ConcurrentUpdateError)]
        settled = [each for each in outcomes if not isinstance(each[1], ConcurrentUpdateError)]
        return settled + self._rewrapped(again)

    def _rewrapped(self, segments: Sequence[RemoteLogSegmentMetadata]) -> "_Outcomes":
        if not segments:
            return []
        return list(zip(segments, self.objects.rewrap_keys(segments).outcomes, strict=True))


def _segments(
    rlmm: RemoteLogMetadataManager, partitions: Iterable[TopicIdPartition]
) -> Iterator[RemoteLogSegmentMetadata]:
    """Yield the finished segments that have a copy of RSM's own."""
    for tp in partitions:
        # A partition may be removed meanwhile.
        with suppress(RemoteResourceNotFoundError):
            for each in all_segments(rlmm, tp, states=[_FINISHED]):
                if each.custom_metadata and not is_imported(each.custom_metadata):
                    yield each


_Outcomes = list[tuple[RemoteLogSegmentMetadata, SegmentKey | RemoteStorageError]]
