"""rlmm_lookup_rate: look-ups a second of many clients, against their empty calls."""

from benchmarks.measure import ROUNDS, Result, ratio
from benchmarks.rlmm.lookups import Lookups, RpcLookups
from benchmarks.rlmm.setting import CLIENTS, MIDDLE, ROUND_S, conditions, setting


def run() -> Result:
    with setting() as made:
        rlmm, empty_server = made.rlmm(made.history(MIDDLE)), made.empty_server()
        rpc = made.clients(RpcLookups(rlmm.address, Lookups(MIDDLE)))
        empty = made.clients(empty_server.calls)
        return ratio(
            "rlmm_lookup_rate",
            ROUNDS,
            ("GetRemoteLogSegmentMetadata, calls/s", lambda: rpc.run(ROUND_S).operations_per_s),
            ("empty RPC, calls/s", lambda: empty.run(ROUND_S).operations_per_s),
            {**rlmm.pids, **rpc.pids},
            conditions(MIDDLE, clients=CLIENTS),
            {"empty-rpc": empty_server.pid, **empty.pids},
        )
