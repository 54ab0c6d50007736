"""Measure rlmm_watch_delay: the time from a commit until each of many watches has the change.

At a steady rate, and beside it with writers that never pause: two cores have no time to spare then.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import takewhile
from threading import Event, Semaphore
from uuid import UUID

import grpc

from benchmarks.measure import QUICK, Result, Side, counted_rounds
from benchmarks.rlmm.histories import BROKER_ID, OFFSETS_PER_SEGMENT, SIZE_BYTES
from benchmarks.rlmm.setting import ROUND_S, SMALL, conditions, setting
from services.api.ids import RemoteLogSegmentId, TopicIdPartition, random_uuid
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.api.watches import WatchedPartition
from services.common.client_security import PLAINTEXT
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient

WRITERS = 8
WATCHES = 50
ROUNDS = 3 if QUICK else 9
DELIVERY_TIMEOUT_S = 60.0
_POLL_S = 0.01
PAUSE_S = 0.75
"""Of each writer after a change: ten changes a second then, six times those of 10 TB a day."""

Times = dict[UUID, float]
"""When something happened to a segment, by its id, on the clock of `time.monotonic`."""


def run() -> Result:
    with setting() as made:
        rlmm = made.rlmm(made.scratch(SMALL))
        topic_id = random_uuid()
        tps = [TopicIdPartition(topic_id, f"watched-{topic_id.hex}", n) for n in range(WRITERS)]
        with open_channel(rlmm.address, PLAINTEXT) as channel, delivering(channel, tps) as watches:
            client = RemoteLogMetadataManagerClient(channel, rlmm.address)
            steady, pressed = [], []
            for number in counted_rounds("rlmm_watch_delay", ROUNDS):
                steady.append(delays_ms(client, tps, watches, 2 * number, PAUSE_S))
                pressed.append(delays_ms(client, tps, watches, 2 * number + 1, 0.0))
    most = Side("p99, ms", [_p99(delays) for delays in steady])
    most_pressed = Side("p99 without a pause, ms", [_p99(delays) for delays in pressed])
    return Result(
        "rlmm_watch_delay",
        "ms from the answer to a change until a watch has it, p99",
        statistics.median(most.samples),
        most.samples,
        most,
        most_pressed,
        conditions(
            SMALL,
            writers=WRITERS,
            watches=WATCHES,
            rounds=ROUNDS,
            p50_ms=[statistics.median(map(statistics.median, each)) for each in (steady, pressed)],
            changes_per_s=[
                sum(map(len, each)) / WATCHES / ROUNDS / ROUND_S for each in (steady, pressed)
            ],
        ),
    )


def _p99(delays: Sequence[float]) -> float:
    return statistics.quantiles(delays, n=100)[98]


def delays_ms(
    client: RemoteLogMetadataManagerClient,
    tps: Sequence[TopicIdPartition],
    watches: Sequence[Times],
    round_number: int,
    pause_s: float,
) -> list[float]:
    """Let all writers write for a round; return the delay of each change at each watch."""
    for delivered in watches:
        delivered.clear()
    ends_s = time.monotonic() + ROUND_S

    def write(tp: TopicIdPartition) -> Times:
        answered, offset = Times(), round_number * 10**9
        while time.monotonic() < ends_s:
            answered[finish_segment(client, tp, offset)] = time.monotonic()
            offset += OFFSETS_PER_SEGMENT
            Event().wait(pause_s)
        return answered

    answered = Times()
    with ThreadPoolExecutor(WRITERS) as pool:
        for own in pool.map(write, tps):
            answered.update(own)
    wait_until_delivered(watches, answered)
    # A watch may have a change before its writer has the answer.
    return [
        1000 * max(0.0, delivered[segment_id] - answered_s)
        for delivered in watches
        for segment_id, answered_s in answered.items()
    ]


def wait_until_delivered(watches: Sequence[Times], answered: Times) -> None:
    gives_up_s = time.monotonic() + DELIVERY_TIMEOUT_S
    while any(len(delivered) < len(answered) for delivered in watches):
        if time.monotonic() > gives_up_s:
            raise RuntimeError(f"a watch lacks changes {DELIVERY_TIMEOUT_S:.0f} s after the last")
        Event().wait(_POLL_S)


def finish_segment(
    client: RemoteLogMetadataManagerClient, tp: TopicIdPartition, offset: int
) -> UUID:
    """Add a segment and finish it; watches report only the second change."""
    segment_id = RemoteLogSegmentId(tp, random_uuid())
    client.add_remote_log_segment_metadata(
        RemoteLogSegmentMetadata(
            remote_log_segment_id=segment_id,
            start_offset=offset,
            end_offset=offset + OFFSETS_PER_SEGMENT - 1,
            max_timestamp_ms=offset,
            broker_id=BROKER_ID,
            event_timestamp_ms=offset,
            segment_leader_epochs=segment_leader_epochs([(0, offset)]),
            segment_size_in_bytes=SIZE_BYTES,
            txn_idx_empty=True,
        )
    )
    state = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    client.update_remote_log_segment_metadata(
        RemoteLogSegmentMetadataUpdate(segment_id, offset, state, BROKER_ID)
    )
    return segment_id.id


@contextmanager
def delivering(channel: grpc.Channel, tps: Sequence[TopicIdPartition]) -> Iterator[list[Times]]:
    """Watch all partitions many times; yield for each watch when it had each finished segment."""
    watches = [Times() for _ in range(WATCHES)]
    begun, ending = Semaphore(0), Event()

    def watch(delivered: Times) -> None:
        client = RemoteLogMetadataManagerClient(channel, "RLMM")
        watched = [WatchedPartition(tp) for tp in tps]
        with closing(client.watch_partitions(watched)) as updates:
            next(updates)
            begun.release()
            # Heartbeats end the loop as well.
            for update in takewhile(lambda _: not ending.is_set(), updates):
                now_s = time.monotonic()
                for partition in update.partitions:
                    delivered.update((segment.id, now_s) for segment in partition.segments)

    with ThreadPoolExecutor(WATCHES) as pool:
        watching = [pool.submit(watch, delivered) for delivered in watches]
        try:
            for _ in watches:
                if not begun.acquire(timeout=DELIVERY_TIMEOUT_S):
                    raise RuntimeError("a watch has not begun")
            yield watches
        finally:
            ending.set()
    for each in watching:
        each.result()
