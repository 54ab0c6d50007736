"""Measure rlmm_one_partition: transitions a second of one partition, against many partitions."""

from benchmarks.measure import ROUNDS, Result, ratio
from benchmarks.rlmm.segment_lives import SegmentLives
from benchmarks.rlmm.setting import MIDDLE, ROUND_S, conditions, setting

CLIENTS = 8


def run() -> Result:
    with setting() as made:
        one, many = made.rlmm(made.scratch(MIDDLE)), made.rlmm(made.scratch(MIDDLE))
        lives = SegmentLives(one.address, MIDDLE, CLIENTS, in_one_partition=True)
        in_one = made.clients(lives, CLIENTS)
        in_many = made.clients(SegmentLives(many.address, MIDDLE, CLIENTS), CLIENTS)
        return ratio(
            "rlmm_one_partition",
            ROUNDS,
            ("transitions/s of one partition", lambda: in_one.run(ROUND_S).operations_per_s),
            ("the same over 1,000", lambda: in_many.run(ROUND_S).operations_per_s),
            {**one.pids, **in_one.pids},
            conditions(MIDDLE, clients=CLIENTS),
            {**many.pids, **in_many.pids},
        )
