"""Test copies that are cancelled at each step at the store, alone and beside another copy."""

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from threading import Event
from typing import Literal

import grpc
import pytest

from services.api.calls import Call, current_call, serving
from services.api.errors import (
    RemoteStorageError,
    RetriableRemoteStorageError,
    SegmentAlreadyExistsError,
)
from services.api.remote_storage_manager import IndexType, LogSegmentData, SegmentChunk
from services.api.segments import RemoteLogSegmentMetadata
from services.local.seaweedfs import S3Endpoint
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rpc.converters.storage import copy_to_proto
from services.rpc.wire import copying_method, request_to_wire
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.backends.protocol import NoAnswerError, StorageBackend
from services.rsm.factory import build_backend
from services.rsm.layout import CustomMetadata, segment_keys
from services.rsm.locations import Location, Locations
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.servicer import add_to_server
from services.rsm.upload import PartBuffers
from tests.contract.remote_storage_manager_contract import (
    Files,
    SourceFailedError,
    a_segment,
    copied,
    fetched,
    index,
    some_bytes,
)
from tests.contract.rsm_over_s3 import PART as S3_PART
from tests.contract.rsm_over_s3 import everything_in, settings_for
from tests.harness.eventually import eventually
from tests.harness.gates import GIVE_UP_S, Gate, gated
from tests.harness.served import served

# Of three parts, of the least size that each kind of store takes.
FILES = {part: Files(some_bytes(2 * part + 123)) for part in (64 * 1024, S3_PART)}
# All that a copy asks of the store, in order.
STEPS = [
    ("begin_upload", 1),
    ("upload_part", 1),
    ("upload_part", 2),
    ("upload_part", 3),
    ("complete_upload", 1),
    ("put", 1),
    ("put_if_absent", 1),
]
MOMENTS: list[Literal["before", "after"]] = ["before", "after"]
PLACES = list(product(STEPS, MOMENTS))


@dataclass
class Store:
    """A store that is empty at first, the size of its parts, and the data copied to it."""

    backend: StorageBackend
    prefix: str
    part: int

    @property
    def files(self) -> Files:
        return FILES[self.part]

    def keys(self) -> Collection[str]:
        """Return the objects, and the unfinished uploads."""
        return everything_in(self.backend, self.prefix)()


@pytest.fixture(params=["files", pytest.param("s3", marks=pytest.mark.deep)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "files":
        return Store(FilesystemStorage(tmp_path), f"{secrets.token_hex(8)}/", 64 * 1024)
    s3: S3Endpoint = request.getfixturevalue("s3")
    settings = settings_for(s3)
    return Store(build_backend(settings), settings.prefix, S3_PART)


class Caller:
    """A process of RSM, and the calls to it, which may be cancelled."""

    def __init__(self, store: Store, gate: Gate | None = None) -> None:
        backend = gated(store.backend, gate) if gate else store.backend
        location = Location(1, backend, store.prefix)
        buffers = PartBuffers(6, store.part, wait_timeout_ms=60_000)
        self._store = store
        self._rsm = ObjectRemoteStorageManager(Locations(location), buffers, upload_threads=2)
        self._gone = Event()
        self._pool = ThreadPoolExecutor(2)

    def copy(self, metadata: RemoteLogSegmentMetadata) -> "Future[bytes | None]":
        return self._pool.submit(self._copy, metadata)

    def give_up(self) -> None:
        self._gone.set()

    def close(self) -> None:
        self._pool.shutdown()
        self._rsm.close()

    def _copy(self, metadata: RemoteLogSegmentMetadata) -> bytes | None:
        with serving(Call("caller", "-", is_active=lambda: not self._gone.is_set())):
            data = LogSegmentData(self._store.files.headers(), self._chunks())
            return self._rsm.copy_log_segment_data(metadata, data)

    def _chunks(self) -> Iterator[SegmentChunk]:
        for chunk in self._store.files.chunks(self._store.part // 4):
            if self._gone.is_set():
                raise SourceFailedError
            yield chunk


@pytest.fixture
def callers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def a_caller(callers: ExitStack, store: Store, gate: Gate | None = None) -> Caller:
    caller = Caller(store, gate)
    callers.callback(caller.close)
    if gate is not None:
        callers.callback(gate.opened.set)
    return caller


def a_gate(step: tuple[str, int], moment: Literal["before", "after"]) -> Gate:
    return Gate(step[0], step[1], moment)


def reached(gate: Gate, copy: "Future[bytes | None]") -> None:
    eventually(lambda: gate.reached.is_set() or copy.done(), deadline_ms=int(GIVE_UP_S * 1000))
    assert gate.reached.is_set(), f"the copy came to no {gate.method}: {copy.exception()}"


def given_up(copy: "Future[bytes | None]") -> bytes | None:
    """Return the result of a cancelled copy; None if it ended with an error."""
    try:
        return copy.result(GIVE_UP_S)
    except (RemoteStorageError, SourceFailedError):
        return None


def assert_is_all_there_is(
    store: Store, metadata: RemoteLogSegmentMetadata, answer: bytes | None
) -> None:
    """Assert that the acknowledged copy is whole, and there is nothing else."""
    assert answer is not None
    found, keys = CustomMetadata.from_bytes(answer), segment_keys(store.prefix, metadata)
    expected = {keys.manifest, keys.log(found.attempt), keys.indexes(found.attempt)}
    assert set(store.keys()) == expected
    location, buffers = Location(1, store.backend, store.prefix), PartBuffers(1, store.part, 1000)
    rsm = ObjectRemoteStorageManager(Locations(location), buffers, upload_threads=1)
    acknowledged = replace(metadata, custom_metadata=answer)
    assert fetched(rsm, acknowledged) == store.files.log
    assert {kind: index(rsm, acknowledged, kind) for kind in IndexType} == store.files.indexes
    rsm.close()


@pytest.mark.parametrize(("step", "moment"), PLACES)
def test_a_copy_that_is_abandoned_leaves_all_or_nothing(
    store: Store, callers: ExitStack, step: tuple[str, int], moment: Literal["before", "after"]
) -> None:
    metadata, gate = a_segment(), a_gate(step, moment)
    caller = a_caller(callers, store, gate)
    copy = caller.copy(metadata)
    reached(gate, copy)
    caller.give_up()
    gate.opened.set()
    answer = given_up(copy)
    if step[0] == "put_if_absent":
        # The manifest was under way: to the caller it is as if the answer had been lost.
        assert_is_all_there_is(store, metadata, answer)
    else:
        assert answer is None
        assert not store.keys()


@pytest.mark.parametrize(("step", "moment"), PLACES)
def test_a_copy_acknowledged_while_another_stands_still_outlives_its_end(
    store: Store, callers: ExitStack, step: tuple[str, int], moment: Literal["before", "after"]
) -> None:
    metadata, gate = a_segment(), a_gate(step, moment)
    other = a_caller(callers, store, gate)
    copy = other.copy(metadata)
    reached(gate, copy)
    answer = a_caller(callers, store).copy(metadata).result(GIVE_UP_S)
    other.give_up()
    gate.opened.set()
    given_up(copy)
    assert_is_all_there_is(store, metadata, answer)


@pytest.mark.parametrize(("step", "moment"), PLACES)
def test_copy_continues_when_another_at_the_same_step_is_abandoned(
    store: Store, callers: ExitStack, step: tuple[str, int], moment: Literal["before", "after"]
) -> None:
    metadata, gate, others_gate = a_segment(), a_gate(step, moment), a_gate(step, moment)
    other = a_caller(callers, store, others_gate)
    given, kept = other.copy(metadata), a_caller(callers, store, gate).copy(metadata)
    reached(others_gate, given)
    reached(gate, kept)
    other.give_up()
    others_gate.opened.set()
    given_up(given)
    gate.opened.set()
    assert_is_all_there_is(store, metadata, kept.result(GIVE_UP_S))


def no_answer() -> None:
    raise RetriableRemoteStorageError("no answer came") from NoAnswerError()


def test_a_copy_that_cannot_know_whether_it_counts_removes_nothing(
    store: Store, callers: ExitStack
) -> None:
    """Another copy may have succeeded with its objects, as here."""
    metadata = a_segment()
    put = Gate("put_if_absent", moment="after", then=no_answer)
    get = Gate("get", then=no_answer)
    unlucky = Caller(replace(store, backend=gated(store.backend, put)), get)
    callers.callback(unlucky.close)
    copy = unlucky.copy(metadata)
    reached(put, copy)
    answer = a_caller(callers, store).copy(metadata).result(GIVE_UP_S)
    put.opened.set()
    get.opened.set()
    with pytest.raises(RetriableRemoteStorageError, match="no answer came"):
        copy.result(GIVE_UP_S)
    assert_is_all_there_is(store, metadata, answer)


@pytest.mark.parametrize("step", STEPS[:-1])
def test_copy_with_an_unanswered_step_leaves_nothing(
    store: Store, callers: ExitStack, step: tuple[str, int]
) -> None:
    gate = Gate(step[0], step[1], "after", no_answer)
    gate.opened.set()
    with pytest.raises(RetriableRemoteStorageError, match="no answer came"):
        a_caller(callers, store, gate).copy(a_segment()).result(GIVE_UP_S)
    assert not store.keys()


def test_copy_with_an_unanswered_manifest_put_counts(store: Store, callers: ExitStack) -> None:
    metadata, gate = a_segment(), Gate("put_if_absent", moment="after", then=no_answer)
    gate.opened.set()
    answer = a_caller(callers, store, gate).copy(metadata).result(GIVE_UP_S)
    assert_is_all_there_is(store, metadata, answer)


class LateStore(FilesystemStorage):
    """Refuses its first put_if_absent, and carries it out late.

    The late put happens when the objects of that copy are about to be deleted.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._late: list[tuple[str, bytes]] = []
        self.gate = Gate("delete")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if not self._late:
            self._late.append((key, data))
            raise RetriableRemoteStorageError("not now")
        return super().put_if_absent(key, data)

    def delete(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        if self.gate.is_next():
            super().put_if_absent(*self._late[0])
            self.gate.wait()
        return super().delete(keys)


def test_copy_does_not_return_objects_that_another_is_about_to_remove(
    tmp_path: Path, callers: ExitStack
) -> None:
    late = LateStore(tmp_path)
    store = Store(late, "tier/", 64 * 1024)
    caller, metadata = a_caller(callers, store), a_segment()
    callers.callback(late.gate.opened.set)
    lost = caller.copy(metadata)
    reached(late.gate, lost)
    other = caller.copy(metadata)
    wrote_all_but_its_manifest = 5
    eventually(
        lambda: len(store.keys()) == wrote_all_but_its_manifest or other.done(),
        deadline_ms=int(GIVE_UP_S * 1000),
    )
    late.gate.opened.set()
    with pytest.raises(RetriableRemoteStorageError, match="not now"):
        lost.result(GIVE_UP_S)
    with pytest.raises(SegmentAlreadyExistsError, match="delete it first"):
        other.result(GIVE_UP_S)


class NotingManager(ObjectRemoteStorageManager):
    """Records the calls that it served."""

    calls: list[Call]

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        self.calls = [current_call()]
        return super().copy_log_segment_data(metadata, data)


@contextmanager
def served_over(store: Store, gate: Gate) -> Iterator[tuple[NotingManager, grpc.Channel]]:
    location = Location(1, gated(store.backend, gate), store.prefix)
    buffers = PartBuffers(6, store.part, wait_timeout_ms=60_000)
    rsm = NotingManager(Locations(location), buffers, upload_threads=2)

    def add(server: grpc.Server) -> None:
        add_to_server(rsm, server)

    with ExitStack() as stack:
        stack.callback(rsm.close)
        channel, _ = stack.enter_context(served(add, "tieredstorage.v1.RemoteStorageManager"))
        stack.callback(gate.opened.set)
        yield rsm, channel


@pytest.mark.parametrize(("step", "moment"), PLACES)
def test_a_call_that_is_cancelled_leaves_all_or_nothing(
    tmp_path: Path, step: tuple[str, int], moment: Literal["before", "after"]
) -> None:
    gate = a_gate(step, moment)
    store = Store(FilesystemStorage(tmp_path), "tier/", 64 * 1024)
    with served_over(store, gate) as (rsm, channel):
        messages = map(request_to_wire, copy_to_proto(a_segment(), store.files.data()))
        call = copying_method(channel).future(messages)
        assert gate.reached.wait(GIVE_UP_S)
        call.cancel()
        eventually(lambda: not rsm.calls[0].is_active())
        gate.opened.set()
    assert len(store.keys()) == (3 if step[0] == "put_if_absent" else 0)


def test_a_copy_that_a_client_gives_up_while_the_store_is_slow_leaves_nothing(store: Store) -> None:
    gate = Gate("put", nth=2)  # the indexes
    with served_over(store, gate) as (rsm, channel):
        client = RemoteStorageManagerClient(channel, "rsm", copy_timeout_s=3)
        with pytest.raises(RetriableRemoteStorageError, match="no progress"):
            copied(client, Files(b"log"))
        assert gate.reached.is_set()
        assert store.keys(), "the log, which the service still works on"
        eventually(lambda: not rsm.calls[0].is_active())
        gate.opened.set()
        eventually(lambda: not store.keys())
