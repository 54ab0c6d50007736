"""Check that no operation costs more calls, requests, statements or copies of bytes than before.

`python -m benchmarks.check` compares with counts.toml, and `--update` writes it. Each count is of
an operation whose services are at rest before and after it; a proxy counts the requests to the
store.
"""

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

from rich.console import Console

from benchmarks import consumer
from benchmarks.count_table import TABLE, Counts, fallen, from_toml, risen, to_toml
from benchmarks.counts import STATEMENTS, Counters, counters_of, counting_stack, samples
from benchmarks.measure import MIB
from benchmarks.rlm_reads import read_all
from benchmarks.rlm_tails import GrowingLog
from benchmarks.segments import RandomSegment
from benchmarks.store import s3_server
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import FetchPartition, FetchRequest
from services.api.remote_storage_manager import IndexType
from services.api.segment_batches import SegmentAddition, SegmentLookup
from services.common.client_security import PLAINTEXT
from services.local.stack import (
    BUCKET,
    PREFIX,
    EmbeddedStack,
    ServiceProcess,
    rlm_settings,
    rsm_settings,
)
from services.rlm.copy.ship import ShipSettings, ship
from services.rlm.kafka_log.log_dir import find_partitions
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rsm.settings import RsmSettings
from tests.harness.eventually import eventually
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy, Request
from tests.harness.synthetic_log import make_log_dir
from tests.harness.tier import SmallTier, a_topic, segment
from tests.unit.rlm.kafka_bytes import write_log_dir

PART_BYTES = int(RsmSettings.model_fields["part_size_bytes"].default)
PARTS = 4
SEGMENT_BYTES = 16 * MIB
SEGMENTS = 2
CALLS = 50
BATCH = 100
DELETED_AT_ONCE = 334
READINGS = 5
DIRECT: Mapping[str, Mapping[str, str]] = {"streamed": {}, "direct": {"RLM_DIRECT_READS": "true"}}
TAILS = 20
TAIL_MS, INTERVAL_MS = 1_000, 500
_CONSUMERS = "RLM_CONSUMER_LISTEN_ADDRESS"
_MARKER = "/.sediment"
"""Read each second, with or without calls."""

_BY_TIME = ("RLMM: AnnounceEndpoint", "RLMM: GetTopicConfig", "RLMM: ListPartitions")
"""Calls that RLM repeats after some time, whatever happens."""

_BY_PASS = (STATEMENTS, "RLMM: ListRemoteLogSegments", "RLMM: ReportPartitionState")
"""Depend on the number of passes within the time that a copy takes."""

_NO_DATABASE = (STATEMENTS,)
_STRAY = 0.02
"""The most that a statement beside many operations adds."""

_ONE_CALL = 0.1
"""The same beside a single one, of many statements."""

_COPIED = "bytes copied, "
_SETTLED_MS = 150


@dataclass(frozen=True)
class Operation:
    """Something that is counted.

    Attributes:
        repeats: how often `work` does it.
        moved_bytes: by all of `work`; the bytes that services copy are counted for each of these.
        ignored: counters that depend on time, besides those that always do.
    """

    name: str
    repeats: int
    work: Callable[[], object]
    moved_bytes: int = 0
    tolerance: float = 0.0
    ignored: Sequence[str] = ()


class World:
    """The services, whose RSM reaches the store through a proxy that counts."""

    def __init__(self, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        name = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="sediment-bench-"))
        self.directory = Path(name)
        self.directory.chmod(0o711)
        stack = EmbeddedStack(self.directory, with_rlm=False, s3=s3_server(self.directory / "s3"))
        self.stack = cleanup.enter_context(counting_stack(stack, self.directory))
        store = self.stack.s3.endpoint
        self._proxy = cleanup.enter_context(HttpProxy(store.endpoint, s3_operation))
        own = rsm_settings(replace(store, endpoint=self._proxy.address), BUCKET, PREFIX)
        rsm = self._started("rsm", {**own, "RSM_DIRECT_READS": "true"})
        self._rsm_address, self._rlmm_address = rsm.address, self.stack.endpoints.rlmm
        counters = counters_of(self.stack)
        self._pages = {**counters.pages, "RSM": rsm.announcement.metrics}
        self._server_url = counters.server_url
        to_rsm = cleanup.enter_context(open_channel(rsm.address, PLAINTEXT))
        to_rlmm = cleanup.enter_context(open_channel(self._rlmm_address, PLAINTEXT))
        self.rsm = RemoteStorageManagerClient(to_rsm, rsm.address)
        self.rlmm = RemoteLogMetadataManagerClient(to_rlmm, self._rlmm_address)

    def rlm(
        self, settings: Mapping[str, str], log_dirs: Sequence[Path] = ()
    ) -> tuple[ServiceProcess, RemoteLogManagerClient]:
        """Start another RLM, and count what it does from now on instead of the last one."""
        own = rlm_settings(self._rsm_address, self._rlmm_address, log_dirs, None)
        process = self._started("rlm", {**own, **settings}, [_CONSUMERS])
        self._pages["RLM"] = process.announcement.metrics
        channel = self._cleanup.enter_context(open_channel(process.address, PLAINTEXT))
        return process, RemoteLogManagerClient(channel, process.address)

    def counted(self, operation: Operation) -> Counts:
        """Do the operation, and return what it cost each time."""
        before = self._at_rest()
        operation.work()
        after = self._at_rest()
        rises = {name: value - before.get(name, 0) for name, value in after.items()}
        counts = {}
        for name, rise in rises.items():
            is_copied = name.startswith(_COPIED)
            of = operation.moved_bytes if is_copied else operation.repeats
            shown = f"copies of a byte, {name.removeprefix(_COPIED)}" if is_copied else name
            if rise and of and name not in (*_BY_TIME, *operation.ignored):
                counts[shown] = round(rise / of, 2 if is_copied else 4)
        return Counts(counts, operation.tolerance)

    def _at_rest(self) -> dict[str, float]:
        """Wait until nothing rises; return the counters. The proxy counts a moment late."""
        counters = Counters(self._pages, self._server_url)
        before: dict[str, float] = {}

        def nothing_new() -> bool:
            nonlocal before
            requests = Counter(map(_kind, filter(_is_counted, self._proxy.requests)))
            now = {n: v for n, v in counters.read().items() if not n.startswith("store: ")}
            before, now = {**now, **requests}, before
            return before == now

        eventually(nothing_new, poll_ms=_SETTLED_MS)
        return before

    def _started(
        self, name: str, settings: Mapping[str, str], addresses: Sequence[str] = ()
    ) -> ServiceProcess:
        directory = self.directory / f"counted-{uuid4().hex}"
        process = ServiceProcess(name, settings, directory, more_addresses=addresses)
        process.start()
        self._cleanup.callback(process.stop)
        return process


def found() -> Iterator[tuple[Operation, Counts]]:
    with ExitStack() as cleanup:
        world = World(cleanup)
        for operations in (_of_rsm, _of_rlmm, _of_copies_and_reads, _of_tails):
            for operation in operations(world):
                yield operation, world.counted(operation)


def _of_rsm(world: World) -> Iterator[Operation]:
    rsm = world.rsm
    small = RandomSegment(world.directory / "small.log", MIB)
    large = RandomSegment(world.directory / "large.log", PARTS * PART_BYTES)
    copied, copied_large = small.copied(rsm), large.copied(rsm)
    size = large.size_bytes
    yield Operation("copy of one part", 1, lambda: small.copied(rsm), MIB, ignored=_NO_DATABASE)
    yield Operation(
        f"copy of {PARTS} parts", 1, lambda: large.copied(rsm), size, ignored=_NO_DATABASE
    )
    list(rsm.fetch_log_segment(copied, 0, 0))
    list(rsm.fetch_log_segment(copied_large, 0, 0))

    def fetch() -> list[bytes | memoryview]:
        return list(rsm.fetch_log_segment(copied_large, 0, size - 1))

    yield Operation(
        "fetch of 1 MiB",
        1,
        lambda: list(rsm.fetch_log_segment(copied, 0, MIB - 1)),
        MIB,
        ignored=_NO_DATABASE,
    )
    yield Operation(f"fetch of {size // MIB} MiB", 1, fetch, size, ignored=_NO_DATABASE)
    kinds = [kind for kind in IndexType if kind is not IndexType.TRANSACTION]
    yield Operation(
        f"fetch of {len(kinds)} indexes",
        1,
        lambda: [list(rsm.fetch_index(copied, kind)) for kind in kinds],
        ignored=_NO_DATABASE,
    )
    others = [
        replace(copied, remote_log_segment_id=replace(copied.remote_log_segment_id, id=uuid4()))
        for _ in range(DELETED_AT_ONCE - 1)
    ]
    yield Operation(
        f"deletion of {DELETED_AT_ONCE} segments",
        1,
        lambda: rsm.delete_log_segment_data_batch([copied, *others]),
        ignored=_NO_DATABASE,
    )


def _of_rlmm(world: World) -> Iterator[Operation]:
    rlmm, tier = world.rlmm, SmallTier(world.rsm, world.rlmm)
    [tp] = a_topic()
    tier.fill(tp, CALLS)

    def repeated(call: Callable[[], object]) -> Callable[[], object]:
        return lambda: [call() for _ in range(CALLS)]

    def look_up(offset: int) -> Callable[[], object]:
        return repeated(lambda: rlmm.remote_log_segment_metadata(tp, 0, offset))

    yield Operation("look-up", CALLS, look_up(0), tolerance=_STRAY)
    yield Operation("look-up past the end", CALLS, look_up(1_000_000), tolerance=_STRAY)
    yield Operation(
        f"look-up of {BATCH} in a batch",
        CALLS,
        repeated(
            lambda: list(rlmm.remote_log_segment_metadata_batch([SegmentLookup(tp, 0, 0)] * BATCH))
        ),
        tolerance=_STRAY,
    )
    yield Operation(
        "list of segments",
        CALLS,
        repeated(lambda: rlmm.list_remote_log_segments(tp)),
        tolerance=_STRAY,
    )
    yield Operation(
        "highest offset",
        CALLS,
        repeated(lambda: rlmm.highest_offset_for_epoch(tp, 0)),
        tolerance=_STRAY,
    )
    [other] = a_topic()
    tier.fill(other, 1)
    segments = [segment(other, number) for number in range(1, 1 + CALLS)]
    yield Operation(
        "transition, added",
        CALLS,
        lambda: [rlmm.add_remote_log_segment_metadata(each) for each in segments],
        tolerance=_STRAY,
    )
    batched = a_topic(partitions=BATCH)
    additions = [SegmentAddition(segment(each, 0)) for each in batched]
    yield Operation(
        f"transition, {BATCH} added in a batch",
        1,
        lambda: rlmm.add_remote_log_segment_metadata_batch(additions),
        tolerance=_ONE_CALL,
    )

    def lives() -> None:
        for number in range(CALLS):
            tier.delete(tier.copy(segment(tp, CALLS + number)))

    yield Operation(
        "segment's whole life",
        CALLS,
        lives,
        tolerance=_STRAY,
    )


def _of_copies_and_reads(world: World) -> Iterator[Operation]:
    log_dir = world.directory / "log"
    make_log_dir(log_dir, len(DIRECT) * READINGS, SEGMENTS, SEGMENT_BYTES)
    size = SEGMENTS * SEGMENT_BYTES
    unread = sorted(find_partitions([log_dir]).partitions, key=lambda name: name.partition)
    yield Operation(
        "copy of a rolled segment by RLM",
        len(unread) * SEGMENTS,
        lambda: ship([log_dir], world.rsm, world.rlmm, ShipSettings(threads=1)),
        len(unread) * size,
        tolerance=_STRAY,
    )
    for way, settings in DIRECT.items():
        process, rlm = world.rlm(settings)

        def first_record(rlm: RemoteLogManagerClient = rlm) -> None:
            list(rlm.fetch(FetchRequest((FetchPartition(unread.pop(), 0, MIB),), MIB)))

        def caught_up(fetch_bytes: int, rlm: RemoteLogManagerClient = rlm) -> None:
            read_all(rlm, unread.pop(), fetch_bytes)

        def consumed(is_committed: bool, address: str = process.listen_address(_CONSUMERS)) -> None:
            with consumer.connected(address, MIB) as reader:
                reader.read_all(unread.pop(), MIB, size, is_committed)

        what = f"catch-up of {size // MIB} MiB, {way}"
        readings: list[tuple[str, Callable[[], None], int]] = [
            (f"first record of a partition, {way}", first_record, MIB),
            (f"{what}, 16 MiB each", partial(caught_up, 16 * MIB), size),
            (f"{what}, 1 MiB each", partial(caught_up, MIB), size),
            (f"{what}, Kafka's Fetch of 1 MiB", partial(consumed, False), size),
            (f"{what}, Kafka's Fetch of 1 MiB, READ_COMMITTED", partial(consumed, True), size),
        ]
        for name, work, moved_bytes in readings:
            yield Operation(name, 1, work, moved_bytes, ignored=(STATEMENTS,))


def _of_tails(world: World) -> Iterator[Operation]:
    topic_id = uuid4()
    log_dir = write_log_dir(world.directory / "tails")
    names = [TopicIdPartition(topic_id, "tails", number) for number in range(TAILS)]
    logs = [GrowingLog(log_dir, name) for name in names]
    settings = {"RLM_REMOTE_LOG_MANAGER_TASK_INTERVAL_MS": str(INTERVAL_MS)}
    process, _ = world.rlm(settings, [log_dir])
    entries = {"sediment.tail.copy.ms": str(TAIL_MS), "retention.ms": str(3_600_000)}
    eventually(lambda: len(world.rlmm.list_partitions().partitions) >= TAILS)
    world.rlmm.put_topic_config(topic_id, entries, now=True)

    def copied() -> float:
        counters = samples(process.announcement.metrics)
        return sum(v for name, _, v in counters if name == "sediment_rlm_copied_segments_total")

    def append_to_all() -> None:
        due = copied() + TAILS
        for log in logs:
            log.append()
        eventually(lambda: copied() >= due, poll_ms=200)

    append_to_all()
    yield Operation("tail of a growing segment", TAILS, append_to_all, ignored=_BY_PASS)


def _kind(request: Request) -> str:
    name = request.target.partition("?")[0].rpartition("/")[2]
    _, dot, kind = name.rpartition(".")
    return f"request: {request.operation}{dot}{kind if dot else ''}"


def _is_counted(request: Request) -> bool:
    path = request.target.partition("?")[0]
    return not path.endswith(_MARKER) and request.operation not in ("HeadBucket", "GetBucket")


def main(arguments: Sequence[str]) -> int:
    console, began = Console(stderr=True), time.monotonic()
    counts: dict[str, Counts] = {}
    for operation, of_one in found():
        counts[operation.name] = of_one
        console.print(f"{time.monotonic() - began:5.1f} s  {operation.name}: {_shown(of_one)}")
    if "--update" in arguments:
        TABLE.write_text(to_toml(counts))
        console.print(f"{TABLE.name} is written")
        return 0
    table = from_toml(TABLE.read_text())
    for line in fallen(table, counts):
        print(line)
    rises = list(risen(table, counts))
    for line in rises:
        print(line)
    if rises:
        print("bench-check: counts rose; if that is meant, `make bench-check UPDATE=1`")
    return 1 if rises else 0


def _shown(counts: Counts) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in counts.of_one.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
