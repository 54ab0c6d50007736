"""Provide replicas of one partition, each a log directory with an RLM, that follow each other.

A replica follows as Kafka's ReplicaFetcherThread and TierStateMachine do: it fetches by its own
end and latest leader epoch, cuts its log where the leader's differs, and, below the leader's own
log, begins again with the state that RLM builds from the tier.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from services.api.lineage import Lineage, checkpoint_text, parse_checkpoint
from services.api.offset_queries import EpochQuery, OffsetQueries, OffsetQuery, SpecialTime
from services.api.remote_log_manager import (
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    FetchRole,
    PartitionRole,
    RecordSource,
)
from services.api.replicas import AuxStateQuery, ReplicaService
from services.api.segments import SegmentLeaderEpoch
from services.records.batches import HEADER_BYTES, Batch
from tests.harness.callback_rlm import FOLLOWER, LEADER, callback_rlm, send_role, turn
from tests.harness.committed_reads import batches_in
from tests.harness.ship_stack import EVERYTHING, Stack, description
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, write_log_dir

_EPOCH_AT = 12
_SOURCES = {RecordSource.LOCAL: "the disk", RecordSource.REMOTE: "the tier", None: "nowhere"}


class Replica:
    """A broker's log of the partition, and the RLM beside it.

    Args:
        rolls: the offsets at which a segment of this broker begins.

    Attributes:
        epoch: the leader epoch that the broker knows.
    """

    def __init__(
        self, stack: Stack, directory: Path, broker_id: int, rolls: Sequence[int] = ()
    ) -> None:
        self._stack = stack
        self._rolls = frozenset(rolls)
        self._log_dir = write_log_dir(directory, broker_id)
        self.files = PartitionFiles(self._log_dir)
        self._write_epochs(Lineage())
        self.files.segment(0, [])
        self.epoch, self._leader = 0, self
        self._start(FOLLOWER)

    def _start(self, role: PartitionRole) -> None:
        self._role = role
        self._rlm = callback_rlm(self._stack, self._log_dir)
        send_role(self._rlm, role, self.epoch)
        turn(self._rlm.lanes.followers)

    @property
    def rlm(self) -> ReplicaService:
        rlm: ReplicaService = self._rlm
        return rlm

    # --- the log ------------------------------------------------------------------------------

    @property
    def logs(self) -> list[Path]:
        return sorted(self.files.path.glob("*.log"))

    @property
    def start(self) -> int:
        return int(self.logs[0].stem)

    @property
    def end(self) -> int:
        return max([int(self.logs[-1].stem), *(each.last_offset + 1 for each in self._batches())])

    @property
    def epochs(self) -> list[tuple[int, int]]:
        return [(each.leader_epoch, each.start_offset) for each in self._lineage.entries]

    @property
    def messages(self) -> dict[int, str]:
        return {each.base_offset: _message(each.data) for each in self._batches()}

    def bytes_from(self, offset: int) -> bytes:
        return b"".join(each.data for each in self._batches() if each.base_offset >= offset)

    @property
    def _lineage(self) -> Lineage:
        return parse_checkpoint((self.files.path / "leader-epoch-checkpoint").read_text())

    def _write_epochs(self, lineage: Lineage) -> None:
        written = self.files.path / "leader-epoch-checkpoint.tmp"
        written.write_text(checkpoint_text(lineage.entries))
        written.rename(self.files.path / "leader-epoch-checkpoint")

    def _batches(self) -> Iterator[Batch]:
        for log in self.logs:
            yield from batches_in(log.read_bytes())

    def append(self, *messages: str) -> None:
        """Write messages as the leader, one offset each."""
        for message in messages:
            end, payload = self.end, message.encode()
            self._write(end, batch(end, payload=payload, leader_epoch=self.epoch), self.epoch)
        self.check()

    def _write(self, offset: int, data: bytes, epoch: int) -> None:
        if offset in self._rolls and offset > int(self.logs[-1].stem):
            self._roll(offset)
        with self.logs[-1].open("ab") as log:
            log.write(data)
        lineage = self._lineage
        if lineage.latest_epoch is None or epoch > lineage.latest_epoch:
            added = SegmentLeaderEpoch(epoch, offset)
            self._write_epochs(Lineage((*lineage.entries, added)))

    def _roll(self, offset: int) -> None:
        self._rewrite(self.logs[-1])
        self.files.snapshot(offset, {1_000 + offset: -1})
        self.files.segment(offset, [])

    def _rewrite(self, log: Path, end: int = 2**62) -> None:
        batches = batches_in(log.read_bytes())
        kept = [bytes(each.data) for each in batches if each.base_offset < end]
        self.files.segment(int(log.stem), kept)

    def lose_from(self, offset: int) -> None:
        """Cut the log: records from `offset` on are gone, in a crash or because they differ."""
        for log in self.logs:
            if int(log.stem) >= offset and log != self.logs[0]:
                self._delete(log)
            else:
                self._rewrite(log, offset)
        self._write_epochs(self._lineage.before(offset))
        self._start(self._role)
        self.check()

    def expire_below(self, offset: int) -> None:
        """Delete the segments below `offset`, as the broker's local retention does."""
        for log, following in zip(self.logs, self.logs[1:], strict=False):
            if int(following.stem) <= offset:
                self._delete(log)
        self.check()

    def _delete(self, log: Path) -> None:
        for file in self.files.path.glob(f"{log.stem}.*"):
            if file.suffix != ".snapshot":
                file.unlink()

    def _begin_at(self, offset: int, lineage: Lineage, snapshot: bytes) -> None:
        for file in self.files.path.glob("0*"):
            file.unlink()
        self.files.segment(offset, [])
        self.files.file(offset, ".snapshot").write_bytes(snapshot)
        self._write_epochs(lineage)
        self._start(self._role)
        self.check()

    # --- roles --------------------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        self.epoch, self._leader = epoch, self
        self._start(LEADER)
        self.check()

    def ship(self) -> None:
        """Copy what is rolled, and check KIP-405's invariants."""
        turn(self._rlm.lanes.copies)
        turn(self._rlm.lanes.reports)
        self.check()

    def check(self) -> None:
        """Check Lz >= Ly >= Lx and, if the tier has something of this log, Ly >= Ry >= Rx."""
        now = description(self._rlm)
        stable_end, local_start = now.last_stable_offset, now.local_log_start_offset
        assert now.log_end_offset >= stable_end >= local_start, now
        remote_end = self.offset_of(SpecialTime.LATEST_TIERED) + 1
        if self._role is LEADER and remote_end > 0:
            assert stable_end >= remote_end >= now.log_start_offset, now

    def offset_of(self, special: SpecialTime) -> int:
        (found,) = self.rlm.list_offsets(OffsetQueries((OffsetQuery(NAME, special),)))
        assert found.error is FetchError.NONE, found
        return found.offset

    # --- following ----------------------------------------------------------------------------

    def follow(self, leader: "Replica") -> list[str]:
        """Follow until this log ends as the leader's; return what happened, step by step."""
        self.epoch, self._leader = leader.epoch, leader
        self._start(FOLLOWER)
        seen: list[str] = []
        while True:
            at = self.end
            wanted = FetchPartition(NAME, at, EVERYTHING, leader.epoch, self._lineage.latest_epoch)
            request = FetchRequest((wanted,), EVERYTHING, role=FetchRole.FOLLOWER)
            parts = list(leader.rlm.fetch(request))
            data = b"".join(part.record_batches for part in parts)
            if parts[0].diverging_epoch is not None:
                common = parts[0].diverging_epoch
                own = self._lineage.end_of(common.leader_epoch, at)
                self.lose_from(min(at, common.end_offset, own.end_offset if own else at))
                seen.append(f"cut at {self.end}")
            elif parts[0].error is FetchError.OFFSET_MOVED_TO_TIERED_STORAGE:
                local_start = leader.offset_of(SpecialTime.EARLIEST_LOCAL)
                query = AuxStateQuery(NAME, local_start, current_leader_epoch=leader.epoch)
                state = leader.rlm.build_remote_log_aux_state(query)
                self._begin_at(state.next_offset, state.lineage, state.producer_snapshot)
                seen.append(f"{at} is in the tier: begin at {self.end} with epochs {self.epochs}")
            elif data:
                for each in batches_in(data):
                    epoch = int.from_bytes(each.data[_EPOCH_AT : _EPOCH_AT + 4], "big")
                    self._write(each.base_offset, bytes(each.data), epoch)
                self.check()
                seen.append(f"fetch {at} to {self.end - 1}")
            else:
                assert (parts[0].error, self.end) == (FetchError.NONE, leader.end), parts
                self._check_equal(leader)
                return seen

    def _check_equal(self, leader: "Replica") -> None:
        start = max(self.start, leader.start)
        assert self.bytes_from(start) == leader.bytes_from(start)
        assert self.epochs == leader.epochs
        self.check()
        leader.check()

    # --- consumers ----------------------------------------------------------------------------

    def consume(self, offset: int, epoch: int | None = None) -> str:
        """Read one message as a consumer does; with the leader epoch of its offset, by KIP-320.

        A consumer that knows the epoch first lets the leader say where that epoch ends.
        """
        if epoch is not None:
            leader = self._leader.rlm
            (answer,) = leader.offsets_for_leader_epochs((EpochQuery(NAME, epoch),))
            assert answer.end is not None, answer
            if answer.end.leader_epoch < epoch or answer.end.end_offset <= offset:
                return f"fenced: epoch {answer.end.leader_epoch} ends at {answer.end.end_offset}"
        part = self.fetch_once(offset)
        if part.error is not FetchError.NONE:
            return str(part.error.value)
        for each in batches_in(part.record_batches):
            if each.last_offset >= offset:
                return f"{_message(each.data)} from {_SOURCES[part.source]}"
        return "nothing"

    def fetch_once(self, offset: int, current_leader_epoch: int | None = None) -> FetchPart:
        wanted = FetchPartition(NAME, offset, EVERYTHING, current_leader_epoch)
        return next(iter(self.rlm.fetch(FetchRequest((wanted,), EVERYTHING))))


def _message(data: memoryview) -> str:
    return bytes(data[HEADER_BYTES:]).decode()
