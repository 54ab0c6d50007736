"""Measure rlmm_batch_lookup: look-ups a second in batches, against the bare statement in a
pipeline.
"""

from benchmarks.measure import ROUNDS, Result, ratio
from benchmarks.rlmm.lookups import Lookups, PipelinedSqlLookups, RpcBatchLookups
from benchmarks.rlmm.setting import MIDDLE, ROUND_S, conditions, setting

BATCH = 1_000


def run() -> Result:
    with setting() as made:
        url, lookups = made.history(MIDDLE), Lookups(MIDDLE)
        rlmm = made.rlmm(url)
        rpc = made.clients(RpcBatchLookups(rlmm.address, lookups, BATCH), 1)
        sql = made.clients(PipelinedSqlLookups(url, lookups, BATCH), 1)
        return ratio(
            "rlmm_batch_lookup",
            ROUNDS,
            (
                "GetRemoteLogSegmentMetadataBatch, look-ups/s",
                lambda: rpc.run(ROUND_S).operations_per_s,
            ),
            ("direct SQL, pipelined, look-ups/s", lambda: sql.run(ROUND_S).operations_per_s),
            {**rlmm.pids, **rpc.pids},
            conditions(MIDDLE, clients=1, batch=BATCH),
            {"postgres": rlmm.pids["postgres"], **sql.pids},
        )
