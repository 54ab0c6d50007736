"""Measure rlmm_transitions: transitions a second, a call each, against as many clients' empty
calls.
"""

import statistics

from benchmarks.measure import ROUNDS, Result, ratio
from benchmarks.rlmm import pgbench
from benchmarks.rlmm.clients import Spread
from benchmarks.rlmm.segment_lives import SegmentLives
from benchmarks.rlmm.setting import CLIENTS, MIDDLE, ROUND_S, SERVERS, conditions, pids_of, setting


def run() -> Result:
    with setting() as made, pgbench.filled_pgbench() as bench:
        rlmms, empty_servers = made.rlmms(made.scratch(MIDDLE)), made.empty_servers()
        lives = [SegmentLives(each.address, MIDDLE, CLIENTS) for each in rlmms]
        rpc = made.clients(Spread(lives))
        empty = made.clients(Spread([each.calls for each in empty_servers]))
        beside: list[float] = []

        result = ratio(
            "rlmm_transitions",
            ROUNDS,
            ("committed transitions/s, a call each", lambda: rpc.run(ROUND_S).operations_per_s),
            ("empty RPC, calls/s", lambda: empty.run(ROUND_S).operations_per_s),
            {**pids_of(rlmms), **rpc.pids},
            conditions(MIDDLE, clients=CLIENTS, servers=SERVERS, pgbench=pgbench.OPTIONS),
            {**{f"empty-rpc {each.pid}": each.pid for each in empty_servers}, **empty.pids},
            lambda: beside.append(bench.transactions_per_s(ROUND_S)),
        )
        result.conditions["pgbench -N, transactions/s"] = statistics.median(beside)
        return result
