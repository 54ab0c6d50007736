"""Measure rlmm_batch_transitions: transitions a second in batches, against `pgbench -N`."""

from benchmarks.measure import ROUNDS, Result, ratio
from benchmarks.rlmm import pgbench
from benchmarks.rlmm.segment_lives import SegmentLivesInBatches
from benchmarks.rlmm.setting import MIDDLE, ROUND_S, conditions, setting

BATCH = 100
CLIENTS = 8


def run() -> Result:
    with setting() as made, pgbench.filled_pgbench() as bench:
        rlmm = made.rlmm(made.scratch(MIDDLE))
        rpc = made.clients(SegmentLivesInBatches(rlmm.address, MIDDLE, CLIENTS, BATCH), CLIENTS)
        return ratio(
            "rlmm_batch_transitions",
            ROUNDS,
            ("committed transitions/s, in batches", lambda: rpc.run(ROUND_S).operations_per_s),
            ("pgbench -N, transactions/s", lambda: bench.transactions_per_s(ROUND_S)),
            {**rlmm.pids, **rpc.pids},
            conditions(MIDDLE, clients=CLIENTS, batch=BATCH, pgbench=pgbench.OPTIONS),
            {"postgres": rlmm.pids["postgres"]},
        )
