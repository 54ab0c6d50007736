"""rlmm_transitions: transitions a second, a call each, against empty calls of as many clients."""

import statistics

from benchmarks.measure import ROUNDS, Result, ratio
from benchmarks.rlmm import pgbench
from benchmarks.rlmm.segment_lives import SegmentLives
from benchmarks.rlmm.setting import CLIENTS, MIDDLE, ROUND_S, conditions, setting


def run() -> Result:
    with setting() as made, pgbench.filled_pgbench() as bench:
        rlmm, empty_server = made.rlmm(made.scratch(MIDDLE)), made.empty_server()
        rpc = made.clients(SegmentLives(rlmm.address, MIDDLE, CLIENTS))
        empty = made.clients(empty_server.calls)
        beside: list[float] = []

        result = ratio(
            "rlmm_transitions",
            ROUNDS,
            ("committed transitions/s, a call each", lambda: rpc.run(ROUND_S).operations_per_s),
            ("empty RPC, calls/s", lambda: empty.run(ROUND_S).operations_per_s),
            {**rlmm.pids, **rpc.pids},
            conditions(MIDDLE, clients=CLIENTS, pgbench=pgbench.OPTIONS),
            {"empty-rpc": empty_server.pid, **empty.pids},
            lambda: beside.append(bench.transactions_per_s(ROUND_S)),
        )
        result.conditions["pgbench -N, transactions/s"] = statistics.median(beside)
        return result
