"""Test concurrent copies of one segment: one commits, the others wait for it, within bounds."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pytest

from services.api.calls import Call, serving
from services.api.errors import RetriableRemoteStorageError
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.active_copies import COMMIT_WAIT_S, ActiveCopies
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.backends.protocol import StorageBackend
from services.rsm.layout import segment_keys
from services.rsm.locations import Location, Locations
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.upload import PartBuffers
from tests.contract.remote_storage_manager_contract import Files, a_segment
from tests.harness.clocks import Clock
from tests.harness.eventually import eventually
from tests.harness.gates import GIVE_UP_S, Gate, gated
from tests.harness.stores import keys_in

PREFIX = "tier/"
FILES = Files(b"log")


@dataclass
class Rsm:
    """One whose first copy stands still before its manifest is put."""

    manager: ObjectRemoteStorageManager
    store: StorageBackend
    gate: Gate
    pool: ThreadPoolExecutor

    def copy(self, metadata: RemoteLogSegmentMetadata, gone: Event) -> "Future[bytes | None]":
        return self.pool.submit(self._copy, metadata, gone)

    def stored(self) -> set[str]:
        return set(keys_in(self.store, PREFIX))

    def _copy(self, metadata: RemoteLogSegmentMetadata, gone: Event) -> bytes | None:
        with serving(Call("caller", "-", is_active=lambda: not gone.is_set())):
            return self.manager.copy_log_segment_data(metadata, FILES.data())


@pytest.fixture
def rsm(tmp_path: Path) -> Iterator[Rsm]:
    gate, store = Gate("put_if_absent"), FilesystemStorage(tmp_path)
    location = Location(1, gated(store, gate), PREFIX)
    with ExitStack() as cleanup:
        manager = ObjectRemoteStorageManager(
            Locations(location), PartBuffers(4, 64 * 1024, 60_000), 1
        )
        cleanup.callback(manager.close)
        pool = cleanup.enter_context(ThreadPoolExecutor(2))
        cleanup.callback(gate.opened.set)
        yield Rsm(manager, store, gate, pool)


@dataclass
class TwoCopies:
    """Of one segment: one that commits, one that waits for that, and how to give that up."""

    metadata: RemoteLogSegmentMetadata
    commits: "Future[bytes | None]"
    waits: "Future[bytes | None]"
    gone: Event


@pytest.fixture
def two_copies(rsm: Rsm) -> TwoCopies:
    metadata, gone = a_segment(len(FILES.log)), Event()
    first = rsm.copy(metadata, Event())
    assert rsm.gate.reached.wait(GIVE_UP_S)
    second = rsm.copy(metadata, gone)
    of_both = 4
    eventually(lambda: len(rsm.stored()) == of_both, deadline_ms=60_000)
    return TwoCopies(metadata, first, second, gone)


def test_copy_of_a_cancelled_call_does_not_wait_and_leaves_nothing(
    rsm: Rsm, two_copies: TwoCopies
) -> None:
    two_copies.gone.set()
    with pytest.raises(RetriableRemoteStorageError, match="caller stopped waiting"):
        two_copies.waits.result(GIVE_UP_S)
    of_the_first = 2
    assert len(rsm.stored()) == of_the_first
    rsm.gate.opened.set()
    assert two_copies.commits.result(GIVE_UP_S)
    assert segment_keys(PREFIX, two_copies.metadata).manifest in rsm.stored()


def test_the_end_of_the_service_ends_the_wait(rsm: Rsm, two_copies: TwoCopies) -> None:
    rsm.manager.stop_waiting()
    with pytest.raises(RetriableRemoteStorageError, match="stopping"):
        two_copies.waits.result(GIVE_UP_S)


def test_a_copy_waits_for_another_for_so_long_and_no_longer() -> None:
    clock = Clock()
    active_copies, keys = ActiveCopies(clock.waiter), segment_keys(PREFIX, a_segment())
    with active_copies.copying(keys) as first, active_copies.copying(keys) as second:
        first()
        began_s = clock.now_s
        with pytest.raises(RetriableRemoteStorageError, match=r"copies of .* no turn within 60 s"):
            second()
    assert clock.now_s - began_s == pytest.approx(COMMIT_WAIT_S, abs=1)


def test_turns_end_with_their_copies() -> None:
    clock = Clock()
    began_s = clock.now_s
    active_copies, keys = ActiveCopies(clock.waiter), segment_keys(PREFIX, a_segment())
    with active_copies.copying(keys) as second:
        with active_copies.copying(keys) as first:
            first()
        with active_copies.copying(keys):
            pass  # It never came to its turn.
        second()
    with active_copies.copying(keys) as next_one:
        next_one()
    assert clock.now_s == began_s
