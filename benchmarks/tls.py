"""Measure tls_unary and tls_stream: mutual TLS with a policy, against plaintext.

Each side has a service process of its own, over the same database or store.
"""

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.deployment import deployed
from benchmarks.measure import MIB, ROUNDS, Result, Side, mib_per_s, ratio
from benchmarks.rlmm.lookups import Lookups, RpcLookups
from benchmarks.rlmm.setting import MIDDLE, ROUND_S, conditions, setting
from benchmarks.segments import RandomSegment
from benchmarks.store import STORE
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.common.client_security import ClientSecurity
from services.local.stack_tls import StackTls

SIZE_BYTES = 64 * MIB
US = 1e6
_TRANSPORTS = {
    "numerator": "TLS 1.3, certificates on both sides (ECDSA P-256), policy of two grants",
    "denominator": "plaintext, no policy",
}


def run_unary() -> Result:
    with setting() as made, _certificates() as tls:
        url, lookups = made.history(MIDDLE), Lookups(MIDDLE)
        plain, secured = made.rlmm(url), made.rlmm(url, tls.settings("rlmm"))
        by_tls = made.clients(RpcLookups(secured.address, lookups, _operator(tls)), 1)
        by_plaintext = made.clients(RpcLookups(plain.address, lookups), 1)
        return ratio(
            "tls_unary",
            ROUNDS,
            ("look-up with TLS, p50, us", lambda: by_tls.run(ROUND_S).p50_s * US),
            ("look-up in plaintext, p50, us", lambda: by_plaintext.run(ROUND_S).p50_s * US),
            {**secured.pids, **by_tls.pids},
            conditions(MIDDLE, clients=1, **_TRANSPORTS),
            {**plain.pids, **by_plaintext.pids},
        )


def run_stream() -> Result:
    with (
        tempfile.TemporaryDirectory(prefix="sediment-bench-") as name,
        deployed() as services,
        _certificates() as tls,
        services.another_rsm(tls.settings("rsm"), _operator(tls)) as (secured, pid),
    ):
        segment = RandomSegment(Path(name) / "segment.log", SIZE_BYTES).copied(services.rsm)
        for rsm in (services.rsm, secured):
            _fetch(rsm, segment)
        result = ratio(
            "tls_stream",
            ROUNDS,
            ("FetchLogSegment with TLS, MiB/s", lambda: _mib_per_s(secured, segment)),
            ("FetchLogSegment in plaintext, MiB/s", lambda: _mib_per_s(services.rsm, segment)),
            {"rsm": pid},
            {"range_bytes": SIZE_BYTES, "store": STORE, **_TRANSPORTS},
            {"rsm": services.pids["rsm"]},
        )
    result.conditions["cpu_ms_per_mib, RSM and its client"] = {
        "TLS": _cpu_ms_per_mib(result.numerator),
        "plaintext": _cpu_ms_per_mib(result.denominator),
    }
    return result


@contextmanager
def _certificates() -> Iterator[StackTls]:
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name:
        yield StackTls(Path(name))


def _operator(tls: StackTls) -> ClientSecurity:
    return ClientSecurity(tls.ca, tls.operator.certificate, tls.operator.key)


def _cpu_ms_per_mib(side: Side) -> float:
    return round(statistics.median(side.cpu_seconds) * 1000 / (SIZE_BYTES / MIB), 2)


def _mib_per_s(rsm: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> float:
    return mib_per_s(SIZE_BYTES, lambda: _fetch(rsm, segment))


def _fetch(rsm: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> None:
    received = sum(map(len, rsm.fetch_log_segment(segment, 0, SIZE_BYTES - 1)))
    if received != SIZE_BYTES:
        raise RuntimeError(f"{received} of {SIZE_BYTES} bytes came")
