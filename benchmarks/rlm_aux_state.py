"""Measure rlm_aux_state: a replica's state of a long partition, against that of a short one."""

import statistics
import time

from benchmarks.deployment import deployed
from benchmarks.many_segments import make_segments, store_rows
from benchmarks.measure import QUICK, ROUNDS, Result, ratio
from services.api.ids import TopicIdPartition
from services.api.lineage import checkpoint_text
from services.api.remote_storage_manager import IndexType
from services.api.replicas import AuxStateQuery
from services.api.segments import segment_leader_epochs
from tests.contract.remote_storage_manager_contract import Files
from tests.harness.tier import OFFSETS, SIZE_BYTES, SmallTier, segment
from tests.unit.rlm.kafka_bytes import producer_snapshot

LONG = 10_000 if QUICK else 100_000
SHORT = 10
CALLS = 20 if QUICK else 200
US = 1e6


def run() -> Result:
    with deployed() as services:
        tier = SmallTier(services.rsm, services.rlmm)

        def filled(segments: int) -> AuxStateQuery:
            """Store a partition whose last segment has objects, and return the query of its end."""
            many = make_segments(f"replica-{segments}", 1, segments - 1)
            store_rows(services.stack.credentials.database_url, many)
            tp = TopicIdPartition(many.topic_id, many.topic, 0)
            indexes = dict.fromkeys(IndexType, b"")
            indexes[IndexType.LEADER_EPOCH] = checkpoint_text(
                segment_leader_epochs([(0, 0)])
            ).encode()
            indexes[IndexType.PRODUCER_SNAPSHOT] = producer_snapshot()
            last = segment(tp, segments - 1, txn_idx_empty=True)
            tier.copy(last, Files(bytes(SIZE_BYTES), indexes))
            return AuxStateQuery(tp, segments * OFFSETS)

        long, short = filled(LONG), filled(SHORT)

        def p50_us(query: AuxStateQuery) -> float:
            return statistics.median(seconds(query) for _ in range(CALLS)) * US

        def seconds(query: AuxStateQuery) -> float:
            began = time.perf_counter()
            state = services.rlm.build_remote_log_aux_state(query)
            elapsed_s = time.perf_counter() - began
            assert state.next_offset == query.offset
            return elapsed_s

        for warm_up in (long, short):
            seconds(warm_up)
        return ratio(
            "rlm_aux_state",
            ROUNDS,
            (f"BuildRemoteLogAuxState, {LONG} segments, p50, us", lambda: p50_us(long)),
            (f"BuildRemoteLogAuxState, {SHORT} segments, p50, us", lambda: p50_us(short)),
            services.pids,
            {"calls_a_round": CALLS, "indexes": "in RLM's memory"},
        )
