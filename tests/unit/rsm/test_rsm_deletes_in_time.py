"""Test that deletes which outlast deadlines progress, on a clock that only the store moves."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest

from services.api.calls import Call, current_call, serving
from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.remote_storage_manager import MAX_DELETE_BATCH, IndexType
from services.api.segment_objects import ObjectLocation, ObjectToDelete
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.backends.protocol import StoredObject, Upload
from services.rsm.deadline import Limits
from services.rsm.layout import CustomMetadata, segment_keys
from services.rsm.locations import Location, Locations
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.upload import PartBuffers
from tests.contract.remote_storage_manager_contract import a_segment
from tests.harness.clocks import Clock
from tests.harness.stores import keys_in

pytestmark = pytest.mark.deep

PREFIX = "tier/"
ATTEMPT = "00c0ffee00c0ffee"
DEADLINE_S = 30.0
REST_S = 1.0
"""For the answer to arrive in; a request that was begun before may take half of it."""


class SlowStore(FilesystemStorage):
    """Each request takes `request_s` on the clock, or fails when it may last no longer, as one over
    HTTP does. Keeps the keys of each delete."""

    def __init__(self, root: Path, clock: Clock) -> None:
        super().__init__(root)
        self._clock = clock
        self.request_s = 0.0
        self.deletes: list[Sequence[str]] = []

    def list_objects(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        self._request()
        return super().list_objects(prefix, after)

    def list_uploads(self, prefix: str) -> Iterator[Upload]:
        self._request()
        return super().list_uploads(prefix)

    def describe(self, key: str) -> StoredObject | None:
        self._request()
        return super().describe(key)

    def abort_upload(self, upload: Upload) -> None:
        self._request()
        super().abort_upload(upload)

    def delete(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        self.deletes.append(keys)
        try:
            self._request()
        except RetriableRemoteStorageError as e:
            return dict.fromkeys(keys, e)
        return super().delete(keys)

    def _request(self) -> None:
        most_s = current_call().left_s()
        self._clock.move(min(self.request_s, most_s))
        if self.request_s > most_s:
            raise RetriableRemoteStorageError("the store has not answered")


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> SlowStore:
    return SlowStore(tmp_path, clock)


@pytest.fixture
def rsm(store: SlowStore, clock: Clock) -> Iterator[ObjectRemoteStorageManager]:
    with closing(rsm_over(store, clock, keys_per_s=1_000_000)) as manager:
        yield manager


def rsm_over(store: SlowStore, clock: Clock, keys_per_s: int) -> ObjectRemoteStorageManager:
    return ObjectRemoteStorageManager(
        Locations(Location(1, store, PREFIX)),
        PartBuffers(2, 64 * 1024, 60_000),
        upload_threads=1,
        limits=Limits(delete_rate_keys_per_s=keys_per_s),
        waiter=clock.waiter,
    )


def a_call(clock: Clock, seconds: float = DEADLINE_S) -> Call:
    """Return a call with a deadline on the clock."""
    end_s = clock.now_s + seconds
    return Call("caller", "-", lambda: clock.now_s < end_s, lambda: end_s - clock.now_s)


def written(store: SlowStore, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    keys = segment_keys(PREFIX, segment)
    for key in (keys.manifest, keys.log(ATTEMPT), keys.indexes(ATTEMPT)):
        store.put(key, b"")
    return segment


def finished() -> list[RemoteLogSegmentMetadata]:
    names = CustomMetadata(1, ATTEMPT, 3, dict.fromkeys(IndexType, 0), bytes(16)).to_bytes()
    return [replace(a_segment(), custom_metadata=names) for _ in range(MAX_DELETE_BATCH)]


def not_reached(outcomes: Sequence[RemoteStorageError | None]) -> list[int]:
    """The places of those that are to be deleted again; all others are gone."""
    errors = {place: outcome for place, outcome in enumerate(outcomes) if outcome is not None}
    for error in errors.values():
        assert isinstance(error, RetriableRemoteStorageError)
    return list(errors)


@pytest.mark.parametrize(("request_s", "expected_calls"), [(0.11, 1), (2.0, 15), (9.0, 100)])
def test_copies_that_never_finished_go_some_with_each_call(
    rsm: ObjectRemoteStorageManager,
    store: SlowStore,
    clock: Clock,
    request_s: float,
    expected_calls: int,
) -> None:
    left = [written(store, a_segment()) for _ in range(3)] + [a_segment() for _ in range(97)]
    store.request_s = request_s
    calls = 0
    while left:
        calls += 1
        began_s, many = clock.now_s, len(left)
        with serving(a_call(clock)):
            outcomes = rsm.delete_log_segment_data_batch(left)
        assert clock.now_s - began_s <= DEADLINE_S - REST_S / 2
        left = [left[place] for place in not_reached(outcomes)]
        assert len(left) < many
    assert calls == expected_calls
    assert not list(keys_in(store, PREFIX))


def test_each_slice_is_deleted_before_the_next_is_looked_for(
    rsm: ObjectRemoteStorageManager, store: SlowStore, clock: Clock
) -> None:
    segments = [written(store, a_segment()) for _ in range(70)]
    store.request_s = 0.1
    with serving(a_call(clock)):
        outcomes = rsm.delete_log_segment_data_batch(segments)
    assert set(outcomes) == {None}
    assert [len(keys) for keys in store.deletes] == [3 * 30, 3 * 30, 3 * 10]


def test_finished_copies_fill_requests_and_each_request_ends_some(
    rsm: ObjectRemoteStorageManager, store: SlowStore
) -> None:
    segments = finished()
    rsm.delete_log_segment_data_batch(segments)
    assert len(store.deletes) == ceil(3 * MAX_DELETE_BATCH / 1000)
    number = {key: n for n, keys in enumerate(store.deletes) for key in keys}
    for at, segment in enumerate(segments):
        keys = segment_keys(PREFIX, segment)
        requests = [number[keys.manifest], number[keys.log(ATTEMPT)], number[keys.indexes(ATTEMPT)]]
        assert requests == sorted(requests)
        assert requests[-1] == min((at * 3 + 2) // 1000, 2)
    for request in store.deletes:
        are_manifests = [key.endswith(".manifest") for key in request]
        assert are_manifests == sorted(are_manifests, reverse=True)


def test_slow_deletes_report_progress_before_each_deadline(store: SlowStore, clock: Clock) -> None:
    left = finished()
    for segment in left[:3]:
        written(store, segment)
    with closing(rsm_over(store, clock, keys_per_s=30)) as rsm:
        for expected in (667, 334, 1, 0):
            began_s = clock.now_s
            with serving(a_call(clock)):
                outcomes = rsm.delete_log_segment_data_batch(left)
            assert clock.now_s - began_s < DEADLINE_S - REST_S + 0.2
            left = [left[place] for place in not_reached(outcomes)]
            assert len(left) == expected
            assert not left or "the deadline passed before this was done" in str(outcomes[-1])
    assert not list(keys_in(store, PREFIX))


def test_a_caller_with_a_short_deadline_uses_most_of_it(
    rsm: ObjectRemoteStorageManager, store: SlowStore, clock: Clock
) -> None:
    segment = written(store, a_segment())
    store.request_s = 0.1
    with serving(a_call(clock, seconds=0.35)):
        rsm.delete_log_segment_data(segment)
    assert not list(keys_in(store, PREFIX))


def test_one_that_is_not_reached_is_retriable(
    rsm: ObjectRemoteStorageManager, store: SlowStore, clock: Clock
) -> None:
    segment = written(store, a_segment())
    store.request_s = DEADLINE_S - REST_S
    with serving(a_call(clock)), pytest.raises(RetriableRemoteStorageError):
        rsm.delete_log_segment_data(segment)
    assert not store.deletes


@pytest.mark.parametrize("request_s", [0.5, 10.0])
def test_objects_that_are_held_to_an_etag_go_some_with_each_call(
    rsm: ObjectRemoteStorageManager, store: SlowStore, clock: Clock, request_s: float
) -> None:
    segments = [written(store, a_segment()) for _ in range(60)]
    keys = [segment_keys(PREFIX, segment).manifest for segment in segments]
    stored = [store.describe(key) for key in keys]
    left = [ObjectToDelete(ObjectLocation(1, each.key), each.etag) for each in stored if each]
    others = [each for each in keys_in(store, PREFIX) if not each.endswith(".manifest")]
    left += [ObjectToDelete(ObjectLocation(1, key)) for key in others]
    store.request_s = request_s
    for _ in range(2):
        began_s, many = clock.now_s, len(left)
        with serving(a_call(clock)):
            outcomes = rsm.objects.delete_segment_objects(left, committed_copies=True)
        assert clock.now_s - began_s <= DEADLINE_S - REST_S / 2
        assert set(keys).issuperset(key for request in store.deletes[:1] for key in request)
        left = [left[place] for place in not_reached(outcomes)]
        assert len(left) < many
    stay = {doomed.location.key for doomed in left}
    assert set(keys_in(store, PREFIX)) == stay


def test_objects_without_an_etag_go_in_one_request(
    rsm: ObjectRemoteStorageManager, store: SlowStore
) -> None:
    keys = [segment_keys(PREFIX, a_segment()).log(secrets.token_hex(8)) for _ in range(1000)]
    objects = [ObjectToDelete(ObjectLocation(1, key)) for key in keys]
    rsm.objects.delete_segment_objects(objects, committed_copies=True)
    assert len(store.deletes) == 1


def test_uploads_are_ended_as_far_as_the_time_suffices(
    rsm: ObjectRemoteStorageManager, store: SlowStore, clock: Clock
) -> None:
    begun = [store.begin_upload(segment_keys(PREFIX, a_segment()).manifest) for _ in range(10)]
    store.request_s = 5
    with serving(a_call(clock)):
        outcomes = rsm.objects.abort_multipart_uploads(
            [(ObjectLocation(1, upload.key), upload.upload_id) for upload in begun]
        )
    assert not_reached(outcomes) == [5, 6, 7, 8, 9]
    assert {upload.key for upload in store.list_uploads(PREFIX)} == {
        upload.key for upload in begun[5:]
    }
