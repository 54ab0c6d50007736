"""Block a store or a group commit until a test releases it."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Literal, cast

from sqlalchemy import Connection, Engine, text

from services.api.calls import NO_CONTEXT, Call, MutationContext, MutationOutcome, serving
from services.api.ids import TopicIdPartition, random_uuid
from services.api.remote_log_metadata_manager import SegmentUpdate
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.rlmm.changes.batch import Outcomes, Requested, SegmentChange
from services.rlmm.changes.group_commit import GroupCommit
from services.rlmm.changes.segment_changes import apply_locked, apply_unlocked
from services.rlmm.database.db import Transactions
from services.rsm.backends.protocol import StorageBackend
from tests.contract.rlmm.segments import FINISHED, segment, update_to
from tests.harness.eventually import eventually

GIVE_UP_S = 120.0


@dataclass
class Gate:
    """The point at which calls block: before or after the store does the `nth` call of `method`.

    Attributes:
        then: called when the gate opens, in the waiting thread; the caller of the store gets its
            exception, as if the store's response was lost.
    """

    method: str
    nth: int = 1
    moment: Literal["before", "after"] = "before"
    then: Callable[[], None] = lambda: None
    reached: Event = field(default_factory=Event)
    opened: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)
    _calls: int = 0

    def is_next(self) -> bool:
        """Count a call; return whether it is the one to block."""
        with self._lock:
            self._calls += 1
            return self._calls == self.nth

    def wait(self) -> None:
        self.reached.set()
        assert self.opened.wait(GIVE_UP_S), f"no test opened the gate at {self.method}"
        self.then()


def gated(store: StorageBackend, gate: Gate) -> StorageBackend:
    """Wrap `store`, so that every call passes but the one that `gate` blocks."""
    return cast(StorageBackend, _GatedStore(store, gate))


class _GatedStore:
    def __init__(self, store: StorageBackend, gate: Gate) -> None:
        self._store = store
        self._gate = gate

    def __getattr__(self, name: str) -> object:
        method = getattr(self._store, name)
        if name != self._gate.method:
            return method

        def stopped(*args: object) -> object:
            stops = self._gate.is_next()
            if stops and self._gate.moment == "before":
                self._gate.wait()
            result = method(*args)
            if stops and self._gate.moment == "after":
                self._gate.wait()
            return result

        return stopped


Result = MutationOutcome | BaseException


class Gated:
    """A group_commit with a gate.

    While the gate is closed, transactions that have begun block before their first statement.
    """

    def __init__(self, engine: Engine, max_wait_s: float = 60.0) -> None:
        self.gate = Event()
        self.gate.set()
        self.sizes: list[int] = []
        self.fault: type[BaseException] | None = None
        self.locked_sizes: list[int] = []
        self._loses_commits = False
        self._engine = engine
        transactions = Transactions(engine)
        self.group_commit = GroupCommit(
            transactions, self._apply_unlocked, self._apply_locked, max_wait_s
        )
        self._threads = ThreadPoolExecutor(64)

    def close(self) -> None:
        self._threads.shutdown()

    def submit(self, item: SegmentChange, call_id: str = "-") -> "Future[MutationOutcome]":
        def change() -> MutationOutcome:
            with serving(Call("broker", call_id)):
                return self.group_commit.change(item)

        return self._threads.submit(change)

    def meeting(self, *items: SegmentChange) -> list[Result]:
        """Yield the results of changes that arrive while the lead is taken."""
        with self.place_taken():
            futures = []
            for number, item in enumerate(items):
                futures.append(self.submit(item, f"call-{number}"))
                eventually(lambda: self.group_commit.waiting() == len(futures))
        return [result_of(future) for future in futures]

    @contextmanager
    def place_taken(self) -> Iterator[None]:
        """Hold the lead by a change of an unknown partition, which is refused."""
        self.gate.clear()
        before = len(self.sizes)
        nowhere = TopicIdPartition(random_uuid(), "nowhere", 0)
        future = self.submit(to(FINISHED, segment(nowhere, 0, 9)))
        eventually(lambda: len(self.sizes) == before + 1)
        try:
            yield
        finally:
            self.sizes.clear()
            self.gate.set()
            result_of(future)

    def lose_commits(self) -> None:
        """Break the connection of each transaction after its last statement."""
        self._loses_commits = True

    def _apply_locked(
        self, connection: Connection, items: Mapping[int, Requested[SegmentChange]]
    ) -> Outcomes:
        self.locked_sizes.append(len(items))
        return apply_locked(connection, items)

    def _apply_unlocked(
        self, connection: Connection, items: Mapping[int, Requested[SegmentChange]]
    ) -> Outcomes:
        self.sizes.append(len(items))
        assert self.gate.wait(timeout=60)
        if self.fault is not None:
            raise self.fault
        outcomes = apply_unlocked(connection, items)
        if self._loses_commits and len(items) > 1:
            pid = connection.scalar(text("SELECT pg_backend_pid()"))
            with self._engine.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})
        return outcomes


def to(
    state: RemoteLogSegmentState,
    metadata: RemoteLogSegmentMetadata,
    context: MutationContext = NO_CONTEXT,
) -> SegmentUpdate:
    return SegmentUpdate(update_to(metadata, state), context)


def result_of(future: "Future[MutationOutcome]") -> Result:
    try:
        return future.result(timeout=60)
    except BaseException as e:  # noqa: BLE001 - the tests check its type
        return e
