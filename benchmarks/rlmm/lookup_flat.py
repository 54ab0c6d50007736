"""Measure rlmm_lookup_flat: a look-up's time in a long history, against a short one's.

Of each history the slowest kind of look-up counts: one that finds, one into a hole, one past the
end; in the long one over all partitions, and in the largest alone.
"""

from benchmarks.measure import ROUNDS, Result, ratio
from benchmarks.rlmm.clients import Clients
from benchmarks.rlmm.histories import Layout
from benchmarks.rlmm.lookups import Lookups, RpcLookups, Where
from benchmarks.rlmm.setting import LARGE, ROUND_S, SMALL, Setting, conditions, setting

US = 1e6


def run() -> Result:
    with setting() as made:
        slow, slow_pids = _clients(made, LARGE)
        fast, fast_pids = _clients(made, SMALL)
        return ratio(
            "rlmm_lookup_flat",
            ROUNDS,
            (f"{LARGE.total_segments()} segments, worst p50, us", lambda: _worst_p50_us(slow)),
            (f"{SMALL.total_segments()} segments, worst p50, us", lambda: _worst_p50_us(fast)),
            slow_pids,
            conditions(LARGE, largest_partition=LARGE.large_segments, clients=1),
            fast_pids,
        )


def _clients(made: Setting, layout: Layout) -> tuple[list[Clients], dict[str, int]]:
    rlmm = made.rlmm(made.history(layout))
    kinds = [Lookups(layout, where) for where in Where]
    if layout.large_segments:
        kinds += [Lookups(layout, where, large_only=True) for where in Where]
    clients = [made.clients(RpcLookups(rlmm.address, kind), 1) for kind in kinds]
    pids = {name: pid for each in clients for name, pid in each.pids.items()}
    return clients, {**rlmm.pids, **pids}


def _worst_p50_us(kinds: list[Clients]) -> float:
    return max(clients.run(ROUND_S / 4).p50_s for clients in kinds) * US
