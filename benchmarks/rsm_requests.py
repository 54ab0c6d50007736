"""Measure rsm_requests: RSM's requests beyond its budget, counted by a proxy before the store."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import ceil
from pathlib import Path
from uuid import uuid4

from benchmarks.measure import MIB, Result, Side
from benchmarks.segments import RandomSegment
from benchmarks.store import STORE, s3_server
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.common.client_security import PLAINTEXT
from services.local.stack import ServiceProcess, rsm_settings
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rsm.settings import RsmSettings
from tests.harness.eventually import eventually
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy, Request

BUCKET = "bench"
PARTS = 4
DELETED_AT_ONCE = 334
PART_BYTES = int(RsmSettings.model_fields["part_size_bytes"].default)
_MARKER = "/.sediment"
"""Read each second, with or without calls."""


def run() -> Result:
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name:
        directory = Path(name)
        with _rsm_behind_proxy(directory) as (rsm, proxy):
            counts = list(_counted(rsm, proxy, directory))
    beyond = [float(max(count - budget, 0)) for _, count, budget in counts]
    return Result(
        "rsm_requests",
        "S3 requests beyond the budget, of all operations",
        sum(beyond),
        beyond,
        Side("requests", [float(count) for _, count, _ in counts]),
        Side("budget", [float(budget) for *_, budget in counts]),
        {
            "operations": {what: f"{count} of {budget}" for what, count, budget in counts},
            "not_counted": "HeadBucket (readiness); a fetch's manifest, once a segment",
            "store": STORE,
        },
    )


def _counted(
    rsm: RemoteStorageManager, proxy: HttpProxy, directory: Path
) -> Iterator[tuple[str, int, int]]:
    """Yield each operation with its requests and its budget (design of RSM's layout)."""
    small = RandomSegment(directory / "small.log", MIB)
    large = RandomSegment(directory / "large.log", PARTS * PART_BYTES)
    copied = small.copied(rsm)
    manifests: set[str] = set()

    def count(work: Callable[[], object]) -> int:
        proxy.forget_requests()
        work()
        return _settled(proxy, manifests)

    yield "copy of one part", count(lambda: small.copied(rsm)), 3
    yield f"copy of {PARTS} parts", count(lambda: large.copied(rsm)), PARTS + 4
    for end in (0, MIB - 1):
        fetch = count(lambda end=end: list(rsm.fetch_log_segment(copied, 0, end)))  # type: ignore[misc]
        yield f"fetch of {end + 1} bytes", fetch, 1
    kinds = [kind for kind in IndexType if kind is not IndexType.TRANSACTION]
    read = count(lambda: [list(rsm.fetch_index(copied, kind)) for kind in kinds])
    yield f"fetch of {len(kinds)} indexes within 5 s", read, 1
    others = [
        replace(copied, remote_log_segment_id=replace(copied.remote_log_segment_id, id=uuid4()))
        for _ in range(DELETED_AT_ONCE - 1)
    ]
    deleted = count(lambda: rsm.delete_log_segment_data_batch([copied, *others]))
    yield f"delete of {DELETED_AT_ONCE}", deleted, ceil(3 * DELETED_AT_ONCE / 1000)


def _settled(proxy: HttpProxy, manifests: set[str]) -> int:
    """Return all requests since the reset: the proxy counts a moment late."""
    before: list[Request] = []

    def nothing_new() -> bool:
        nonlocal before
        before, now = proxy.requests, before
        return bool(before) and before == now

    eventually(nothing_new, poll_ms=100)
    counted = 0
    for request in before:
        path, _, _ = request.target.partition("?")
        is_manifest = request.operation == "GetObject" and path.endswith(".manifest")
        if is_manifest and request.target not in manifests:
            manifests.add(request.target)
        elif not path.endswith(_MARKER):
            counted += 1
    return counted


@contextmanager
def _rsm_behind_proxy(
    directory: Path,
) -> Iterator[tuple[RemoteStorageManagerClient, HttpProxy]]:
    with ExitStack() as cleanup:
        server = s3_server(directory / "s3")
        server.start()
        cleanup.callback(server.kill)
        store = server.endpoint
        store.ensure_bucket(BUCKET)
        proxy = cleanup.enter_context(HttpProxy(store.endpoint, s3_operation))
        settings = rsm_settings(replace(store, endpoint=proxy.address), BUCKET, "", "bench")
        service = ServiceProcess("rsm", settings, directory / "services")
        service.start()
        cleanup.callback(service.stop)
        channel = cleanup.enter_context(open_channel(service.address, PLAINTEXT))
        yield RemoteStorageManagerClient(channel, service.address), proxy
