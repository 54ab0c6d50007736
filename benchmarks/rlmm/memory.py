"""Measure rlmm_memory: the growth of RLMM's process while its segments are listed."""

import statistics
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import psutil

from benchmarks.measure import MIB, QUICK, Result, Side, counted_rounds, peak_rss_bytes
from benchmarks.rlmm.database import databases, running_rlmm
from benchmarks.rlmm.histories import PartitionHistory
from benchmarks.rlmm.setting import LARGE, conditions
from services.api.remote_log_metadata_manager import MAX_PAGE_SIZE
from services.common.client_security import PLAINTEXT
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient

LISTED = 50_000 if QUICK else 1_000_000
CLIENTS = 4
ROUNDS = 1 if QUICK else 3


def run() -> Result:
    grown, peaks, idles = [], [], []
    for _ in counted_rounds("rlmm_memory", ROUNDS):
        # A process of its own each time: a peak never falls.
        with running_rlmm(databases().history(LARGE)) as rlmm:
            pid = rlmm.process.pid
            idle = psutil.Process(pid).memory_info().rss
            _list(rlmm.address)
            peak = peak_rss_bytes(pid)
        idles.append(idle / MIB)
        peaks.append(peak / MIB)
        grown.append((peak - idle) / MIB)
    return Result(
        "rlmm_memory",
        "MiB of RLMM's process over idle, at its peak",
        statistics.median(grown),
        grown,
        Side("at its peak, MiB", peaks),
        Side("idle, MiB", idles),
        conditions(LARGE, listed=LISTED, clients=CLIENTS, rounds=ROUNDS),
    )


def _list(address: str) -> None:
    """List page by page at least LISTED segments, including the largest partition's."""
    histories = LARGE.partition_histories()
    chosen, count = [], 0
    for history in histories:
        chosen.append(history)
        count += history.segments - len(history.gone_segments)
        if count >= LISTED:
            break
    with open_channel(address, PLAINTEXT) as channel, ThreadPoolExecutor(CLIENTS) as pool:
        client = RemoteLogMetadataManagerClient(channel, address)
        shares = [chosen[number::CLIENTS] for number in range(CLIENTS)]
        listed = sum(pool.map(lambda share: _count(client, share), shares))
    if listed != count:
        raise RuntimeError(f"{count} segments are stored, {listed} were listed")


def _count(client: RemoteLogMetadataManagerClient, histories: Iterable[PartitionHistory]) -> int:
    count = 0
    for history in histories:
        token = ""
        while True:
            page = client.list_remote_log_segments(
                history.topic_id_partition, page_size=MAX_PAGE_SIZE, page_token=token
            )
            count += len(page.segments)
            token = page.next_page_token
            if not token:
                break
    return count
