"""Test reads of logs from a real S3 store by RSM's URLs, and the fall back to RSM's stream."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from services.api.errors import CorruptSegmentError, RemoteStorageError
from services.api.remote_storage_manager import OpenedLogSegment, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.__main__ import direct_reader
from services.rlm.fetch.read_ahead import RANGE_BYTES
from services.rpc.client.direct import NOT_SERVED_S, STORE_AWAY_S, DirectReader
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_manager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import MIB, Files, copied, some_bytes
from tests.contract.rsm_over_s3 import with_properties
from tests.harness.clocks import Clock
from tests.harness.eventually import eventually
from tests.harness.published import growth
from tests.harness.stores import keys_in
from tests.harness.wrapper import Wrapper

SIZE = 3 * MIB + 1000
FILES = Files(some_bytes(SIZE))


class CountingRsm(Wrapper[RemoteStorageManager]):
    """The real RSM; counts URLs and streams."""

    def __init__(self, rsm: RemoteStorageManager) -> None:
        super().__init__(rsm)
        self.opened = self.streamed = 0
        self.gate = Event()
        self.gate.set()

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedLogSegment:
        self.opened += 1
        assert self.gate.wait(60)
        return self.real.open_log_segment(metadata)

    def fetch_log_segment(self, *args: Any) -> Iterator[bytes | memoryview]:
        self.streamed += 1
        return self.real.fetch_log_segment(*args)


class Reading:
    """A DirectReader over an RSM, and what it has done."""

    def __init__(self, rsm: CountingRsm) -> None:
        self.rsm = rsm
        self.clock = Clock()
        self.sizes: list[int] = []
        self.failures: list[None] = []
        any_rsm: Any = rsm
        self.reader = DirectReader(
            any_rsm, self.sizes.append, lambda: self.failures.append(None), 1000, self.clock
        )

    def read(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
        return b"".join(self.reader.fetch_log_segment(metadata, start, end))


@pytest.fixture(params=[True])
def reading(request: pytest.FixtureRequest, settings: RsmSettings) -> Iterator[Reading]:
    changed = settings.model_copy(update={"direct_reads": request.param})
    with closing(build_manager(changed)) as manager:
        reading = Reading(CountingRsm(manager))
        with closing(reading.reader):
            yield reading


def test_ranges_are_read_from_the_store_by_one_url(reading: Reading) -> None:
    segment = copied(reading.rsm, FILES)
    for start, end in ((0, SIZE - 1), (5, 9), (MIB - 1, MIB), (2 * MIB, SIZE + 5), (SIZE, SIZE)):
        assert reading.read(segment, start, end) == FILES.log[start : end + 1]
    assert (reading.rsm.opened, reading.rsm.streamed, reading.failures) == (1, 0, [])
    assert sum(reading.sizes) >= SIZE


def test_reads_that_begin_at_once_share_one_url(reading: Reading) -> None:
    segment = copied(reading.rsm, FILES)
    reading.rsm.gate.clear()
    with ThreadPoolExecutor(4) as pool:
        reads = [pool.submit(reading.read, segment, at, at + MIB - 1) for at in (0, 1, 2, MIB)]
        eventually(lambda: reading.rsm.opened)
        reading.rsm.gate.set()
        for at, read in zip((0, 1, 2, MIB), reads, strict=True):
            assert read.result(timeout=60) == FILES.log[at : at + MIB]
    assert (reading.rsm.opened, reading.rsm.streamed) == (1, 0)


def test_rlms_reader_counts_bytes_and_failures(settings: RsmSettings) -> None:
    grown = growth(
        "sediment_rlm_direct_read_bytes_total", "sediment_rlm_direct_read_failures_total"
    )
    size = 2 * RANGE_BYTES
    files = Files(some_bytes(size))
    changed = settings.model_copy(update={"direct_reads": True})
    with closing(build_manager(changed)) as manager:
        rsm: Any = CountingRsm(manager)
        segment = copied(rsm, files)
        with closing(direct_reader(rsm)) as reader:
            assert b"".join(reader.fetch_log_segment(segment, 0, size - 1)) == files.log
            read_bytes, failures = grown()
            assert (read_bytes, failures) == (size, 0)
            manager.delete_log_segment_data(segment)
            with suppress(RemoteStorageError):
                b"".join(reader.fetch_log_segment(segment, 0, size - 1))
    assert grown() == [size, 1]


def test_no_url_is_asked_for_a_short_read(reading: Reading) -> None:
    segment = copied(reading.rsm, FILES)
    assert reading.read(segment, 7, 1005) == FILES.log[7:1006]
    assert (reading.rsm.opened, reading.rsm.streamed) == (0, 1)


def test_no_url_is_asked_for_a_transformed_segment(settings: RsmSettings, tmp_path: Path) -> None:
    settings = settings.model_copy(update={"direct_reads": True})
    compressing = with_properties(settings, tmp_path, 'compression = "zstd"')
    with closing(build_manager(compressing)) as manager:
        reading = Reading(CountingRsm(manager))
        segment = copied(reading.rsm, FILES)
        assert reading.read(segment, 0, SIZE - 1) == FILES.log
        assert (reading.rsm.opened, reading.rsm.streamed) == (0, 1)


def test_a_url_is_asked_for_again_before_it_expires(reading: Reading) -> None:
    segment = copied(reading.rsm, FILES)
    reading.read(segment, 0, 999)
    reading.clock.now_s = 241.0  # Of 300 s.
    reading.read(segment, 0, 999)
    assert (reading.rsm.opened, reading.failures) == (2, [])


def test_damage_is_streamed_by_rsm_which_names_it_and_logged_once(
    reading: Reading,
    settings: RsmSettings,
    backend: StorageBackend,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    segment = copied(reading.rsm, FILES)
    (key,) = (key for key in keys_in(backend, settings.prefix) if key.endswith(".log"))
    backend.put(key, FILES.log[: MIB + 7] + b"x" + FILES.log[MIB + 8 :])
    assert reading.read(segment, 0, MIB - 1) == FILES.log[:MIB]
    for _ in range(2):
        with pytest.raises(CorruptSegmentError, match="chunk 1"):
            reading.read(segment, 0, SIZE - 1)
        reading.clock.now_s += STORE_AWAY_S
    assert (reading.rsm.opened, reading.rsm.streamed, len(reading.failures)) == (2, 2, 2)
    backend.put(key, FILES.log)
    assert reading.read(segment, 0, SIZE - 1) == FILES.log
    assert reading.rsm.streamed == 2
    found = [r.getMessage() for r in caplog.records if r.name == "services.rpc.client.direct"]
    address = settings.endpoint
    topic = segment.topic_id_partition.topic
    assert found == [
        f"{segment.remote_log_segment_id}: the store at {address} cannot be read directly: the "
        f"bytes from {MIB} on are damaged or cut off; RSM streams all logs, retrying in 60 s; "
        f"check the route to the store, and `sediment scrub --topic {topic}`",
        f"the store at {address} is read directly again",
    ]


@pytest.mark.parametrize("reading", [False], indirect=True)
def test_without_urls_rsm_streams_and_is_asked_again_later(reading: Reading) -> None:
    segment = copied(reading.rsm, FILES)
    for _ in range(2):
        assert reading.read(segment, 5, 1005) == FILES.log[5:1006]
    assert (reading.rsm.opened, reading.rsm.streamed) == (1, 2)
    reading.clock.now_s = NOT_SERVED_S
    reading.read(segment, 5, 1005)
    assert reading.rsm.opened == 2
