"""Measure rlmm_lookup: a look-up's time, against an empty call's and the bare statement's
together.
"""

from benchmarks.measure import ROUNDS, Result, ratio
from benchmarks.rlmm.lookups import Lookups, RpcLookups, SqlLookups
from benchmarks.rlmm.setting import MIDDLE, ROUND_S, conditions, setting

US = 1e6


def run() -> Result:
    with setting() as made:
        url, lookups = made.history(MIDDLE), Lookups(MIDDLE)
        rlmm, empty_server = made.rlmm(url), made.empty_server()
        rpc = made.clients(RpcLookups(rlmm.address, lookups), 1)
        empty = made.clients(empty_server.calls, 1)
        sql = made.clients(SqlLookups(url, lookups), 1)
        return ratio(
            "rlmm_lookup",
            ROUNDS,
            ("GetRemoteLogSegmentMetadata, p50, us", lambda: rpc.run(ROUND_S).p50_s * US),
            (
                "empty RPC + direct SQL, p50 each, us",
                lambda: (empty.run(ROUND_S / 2).p50_s + sql.run(ROUND_S / 2).p50_s) * US,
            ),
            {**rlmm.pids, **rpc.pids},
            conditions(MIDDLE, clients=1),
            {
                "empty-rpc": empty_server.pid,
                "postgres": rlmm.pids["postgres"],
                **empty.pids,
                **sql.pids,
            },
            counted=rlmm.counted("look-up", "RLMM: GetRemoteLogSegmentMetadata"),
        )
