"""Test the summary of how far an RLM's copies are behind."""

from dataclasses import replace

from services.api.remote_log_manager import CopyLag, Problem, ProblemKind
from services.rlm.describe import copy_lag_of
from services.rlm.partition import Lag, Partition, new_partition
from services.rpc.converters.log import copy_lag_from_proto, copy_lag_to_proto
from tests.unit.rlm.kafka_bytes import NAME


def partition(number: int, lag: Lag) -> Partition:
    name = replace(NAME, partition=number)
    made = new_partition(name, None, None, None)  # type: ignore[arg-type]  # asked nothing
    made.copy.lag = lag
    return made


def test_what_waits_is_summed_up_and_the_worst_is_kept() -> None:
    blocked = partition(3, Lag(2, 20, 700, None))
    blocked.copy.problems = (Problem(ProblemKind.CORRUPT_BATCH, "a.log", "bad", 5, 2),)
    partitions = [
        partition(0, Lag()),
        partition(1, Lag(1, 100, 900, 400)),
        partition(2, Lag(3, 30, 500, 1_000)),
        blocked,
    ]
    lag = copy_lag_of(partitions, 7, now_ms=1_000)
    assert lag == CopyLag(7, 4, 3, 1, 6, 150, 500, 0.5, unchecked_partitions=4)
    assert copy_lag_from_proto(copy_lag_to_proto(lag)) == lag


def test_what_is_unknown_is_absent() -> None:
    lag = copy_lag_of([partition(0, Lag(1, 10, None, 5)), partition(1, Lag(1, 5, 9, 0))], 7, 10)
    assert (lag.oldest_timestamp_ms, lag.local_retention_used) == (9, None)
    nothing = copy_lag_of([], 7, 10)
    assert nothing == CopyLag(7, 0)
    assert copy_lag_from_proto(copy_lag_to_proto(nothing)) == nothing
