"""Measure rlm_requests: requests to the store for each GiB read in order through Fetch.

A proxy before the store counts them, so that no time is measured here. Each way to read has an RSM
and an RLM that have read nothing before: manifests and indexes count.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.deployment import Deployment
from benchmarks.measure import MIB, QUICK, Result, Side
from benchmarks.rlm_reads import read_all, shipped
from benchmarks.store import STORE
from services.common.client_security import PLAINTEXT
from services.local.stack import BUCKET, PREFIX, ServiceProcess, rlm_settings, rsm_settings
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from tests.harness.eventually import eventually
from tests.harness.http_proxy import HttpProxy, Request

SEGMENT_BYTES = 64 * MIB
SEGMENTS = 2 if QUICK else 4
WAYS: dict[str, tuple[int, Mapping[str, str]]] = {
    "streamed, 16 MiB each": (16 * MIB, {}),
    "streamed, 1 MiB each": (MIB, {}),
    "direct, 16 MiB each": (16 * MIB, {"RLM_DIRECT_READS": "true"}),
}


def run() -> Result:
    counts: dict[str, Counter[str]] = {}
    size = 0
    with shipped(1, SEGMENTS, SEGMENT_BYTES) as (services, (name,)):
        for way, (fetch_bytes, settings) in WAYS.items():
            with _behind_proxy(services, settings) as (rlm, proxy):
                size = read_all(rlm, name, fetch_bytes)
                counts[way] = Counter(map(_kind, _settled(proxy)))
    per_gib = {way: count.total() * 1024 * MIB / size for way, count in counts.items()}
    return Result(
        "rlm_requests",
        "requests to the store for each GiB read in order",
        max(per_gib.values()),
        list(per_gib.values()),
        Side("requests", [float(count.total()) for count in counts.values()]),
        Side("GiB", [size / 1024 / MIB] * len(counts)),
        {
            "per GiB": {way: round(value) for way, value in per_gib.items()},
            "requests": {way: dict(count) for way, count in counts.items()},
            "bytes": size,
            "segment_bytes": SEGMENT_BYTES,
            "store": STORE,
        },
    )


def _kind(request: Request) -> str:
    return request.target.partition("?")[0].rpartition(".")[2]


def _settled(proxy: HttpProxy) -> list[Request]:
    """Return the requests for objects since the start: the proxy counts a moment late."""
    before: list[Request] = []

    def nothing_new() -> bool:
        nonlocal before
        before, now = _of_objects(proxy), before
        return bool(before) and before == now

    eventually(nothing_new, poll_ms=500)
    return before


def _of_objects(proxy: HttpProxy) -> list[Request]:
    kinds = ("log", "indexes", "manifest")
    return [each for each in proxy.requests if each.method == "GET" and _kind(each) in kinds]


@contextmanager
def _behind_proxy(
    services: Deployment, settings: Mapping[str, str]
) -> Iterator[tuple[RemoteLogManagerClient, HttpProxy]]:
    """Start another RSM, whose store is the proxy, and an RLM that reads from it."""
    with ExitStack() as opened:
        directory = Path(
            opened.enter_context(tempfile.TemporaryDirectory(prefix="sediment-bench-"))
        )
        store = services.stack.s3.endpoint
        proxy = opened.enter_context(HttpProxy(store.endpoint))
        rsm_variables = rsm_settings(replace(store, endpoint=proxy.address), BUCKET, PREFIX)
        rsm = ServiceProcess("rsm", {**rsm_variables, "RSM_DIRECT_READS": "true"}, directory)
        rsm.start()
        opened.callback(rsm.stop)
        rlm_variables = rlm_settings(rsm.address, services.stack.endpoints.rlmm, [], None)
        rlm = ServiceProcess("rlm", {**rlm_variables, **settings}, directory)
        rlm.start()
        opened.callback(rlm.stop)
        channel = opened.enter_context(open_channel(rlm.address, PLAINTEXT))
        yield RemoteLogManagerClient(channel, rlm.address), proxy
