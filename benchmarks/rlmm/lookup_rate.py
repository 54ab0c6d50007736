"""Measure rlmm_lookup_rate: look-ups a second of many clients, against their empty calls."""

from benchmarks.measure import ROUNDS, Result, ratio
from benchmarks.rlmm.clients import Spread
from benchmarks.rlmm.lookups import Lookups, RpcLookups
from benchmarks.rlmm.setting import CLIENTS, MIDDLE, ROUND_S, SERVERS, conditions, pids_of, setting


def run() -> Result:
    with setting() as made:
        rlmms, empty_servers = made.rlmms(made.history(MIDDLE)), made.empty_servers()
        rpc = made.clients(Spread([RpcLookups(each.address, Lookups(MIDDLE)) for each in rlmms]))
        empty = made.clients(Spread([each.calls for each in empty_servers]))
        return ratio(
            "rlmm_lookup_rate",
            ROUNDS,
            ("GetRemoteLogSegmentMetadata, calls/s", lambda: rpc.run(ROUND_S).operations_per_s),
            ("empty RPC, calls/s", lambda: empty.run(ROUND_S).operations_per_s),
            {**pids_of(rlmms), **rpc.pids},
            conditions(MIDDLE, clients=CLIENTS, servers=SERVERS),
            {**{f"empty-rpc {each.pid}": each.pid for each in empty_servers}, **empty.pids},
        )
