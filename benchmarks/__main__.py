"""Run the named benchmarks, or all: `python -m benchmarks [NAME ...]`.

A NAME may be a pattern, such as 'rlmm_*'.
"""

import sys
import time
from collections.abc import Callable
from fnmatch import fnmatchcase

from benchmarks import (
    abuses,
    broker_catch_up,
    broker_copy,
    broker_produce,
    broker_rebuild,
    broker_requests,
    broker_restart,
    console,
    keys_rewrap,
    local_sweep,
    processes,
    recovery,
    restore,
    rlm_aux_state,
    rlm_faults,
    rlm_idle,
    rlm_outage,
    rlm_reads,
    rlm_requests,
    rlm_ship,
    rlm_tails,
    rsm_copy,
    rsm_fetch,
    rsm_first_byte,
    rsm_memory,
    rsm_requests,
    rsm_transformed,
    service_memory,
    spark_delete,
    spark_driver,
    spark_foreground,
    spark_records,
    spark_scan,
    status_time,
    tls,
    traces,
)
from benchmarks.measure import TOOK, Result, report
from benchmarks.rlmm import (
    batch_lookup,
    batch_transitions,
    lookup,
    lookup_flat,
    lookup_rate,
    memory,
    one_partition,
    ready,
    transitions,
    watch_delay,
)

BENCHMARKS: dict[str, Callable[[], Result]] = {
    "rsm_copy": rsm_copy.run,
    "rsm_fetch": rsm_fetch.run,
    "rsm_fetch_verified": rsm_fetch.run_verified,
    "rsm_first_byte": rsm_first_byte.run,
    "rsm_first_byte_verified": rsm_first_byte.run_verified,
    "rsm_memory": rsm_memory.run,
    "rsm_memory_transformed": rsm_memory.run_transformed,
    "rsm_requests": rsm_requests.run,
    "rsm_zstd_copy": rsm_transformed.run_zstd_copy,
    "rsm_zstd_fetch": rsm_transformed.run_zstd_fetch,
    "rsm_aes_copy": rsm_transformed.run_aes_copy,
    "rsm_aes_fetch": rsm_transformed.run_aes_fetch,
    "keys_rewrap": keys_rewrap.run,
    "rlmm_lookup": lookup.run,
    "rlmm_lookup_flat": lookup_flat.run,
    "rlmm_lookup_rate": lookup_rate.run,
    "rlmm_batch_lookup": batch_lookup.run,
    "rlmm_transitions": transitions.run,
    "rlmm_batch_transitions": batch_transitions.run,
    "rlmm_one_partition": one_partition.run,
    "rlmm_processes": processes.run_transitions,
    "rlmm_processes_lookup": processes.run_lookups,
    "rsm_processes": processes.run_fetches,
    "rlmm_ready": ready.run,
    "rlmm_memory": memory.run,
    "rlmm_watch_delay": watch_delay.run,
    "rlm_ship": rlm_ship.run,
    "recovery_promotion": recovery.run_promotion,
    "recovery_rebuild": recovery.run_rebuild,
    "recovery_restore": recovery.run_restore,
    "restore": restore.run,
    "restore_direct": restore.run_direct,
    "rlm_aux_state": rlm_aux_state.run,
    "rlm_idle": rlm_idle.run,
    "rlm_outage": rlm_outage.run,
    "rlm_tails": rlm_tails.run,
    "rlm_faults": rlm_faults.run,
    "rlm_catch_up": rlm_reads.run_catch_up,
    "rlm_catch_up_direct": rlm_reads.run_catch_up_direct,
    "rlm_requests": rlm_requests.run,
    "rlm_fetch_hit": rlm_reads.run_fetch_hit,
    "rlm_cold_first_record": rlm_reads.run_cold_first_record,
    "status_time": status_time.run,
    "console_paint": console.run,
    "service_memory": service_memory.run,
    "tls_unary": tls.run_unary,
    "tls_stream": tls.run_stream,
    "traced_unary": traces.run_unary,
    "abuses": abuses.run,
    "broker_catch_up": broker_catch_up.run_streamed,
    "broker_catch_up_direct": broker_catch_up.run_direct,
    "broker_copy": broker_copy.run,
    "broker_over_read": broker_requests.run,
    **broker_produce.RUNS,
    "broker_rebuild": broker_rebuild.run,
    "broker_restart": broker_restart.run,
    "broker_vs_lts": broker_catch_up.run_against_local_tiered_storage,
    "local_sweep": local_sweep.run,
    "spark_delete": spark_delete.run,
    "spark_driver": spark_driver.run,
    "spark_foreground": spark_foreground.run,
    "spark_scan": spark_scan.run,
    "spark_records": spark_records.run,
}


def main(patterns: list[str]) -> None:
    unknown = [pattern for pattern in patterns if not _matching([pattern])]
    if unknown:
        raise SystemExit(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    for name in _matching(patterns or ["*"]):
        began_s = time.monotonic()
        result = BENCHMARKS[name]()
        result.conditions[TOOK] = round(time.monotonic() - began_s)
        report(result)


def _matching(patterns: list[str]) -> list[str]:
    return [name for name in BENCHMARKS if any(fnmatchcase(name, each) for each in patterns)]


if __name__ == "__main__":
    main(sys.argv[1:])
