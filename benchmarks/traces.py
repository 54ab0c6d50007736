"""Measure traced_unary: a look-up with one call in a hundred traced, against none."""

from benchmarks.measure import ROUNDS, Result, ratio
from benchmarks.rlmm.lookups import Lookups, RpcLookups
from benchmarks.rlmm.setting import MIDDLE, ROUND_S, conditions, setting
from tests.harness.recorders import collecting_traces

US = 1e6


def run_unary() -> Result:
    with setting() as made, collecting_traces() as collector:
        url, lookups = made.history(MIDDLE), Lookups(MIDDLE)
        settings = {"RLMM_TRACES_ENDPOINT": f"http://{collector.address}"}
        plain, traced = made.rlmm(url), made.rlmm(url, settings)
        by_traced = made.clients(RpcLookups(traced.address, lookups), 1)
        by_plain = made.clients(RpcLookups(plain.address, lookups), 1)
        result = ratio(
            "traced_unary",
            ROUNDS,
            ("look-up, 1 in 100 traced, p50, us", lambda: by_traced.run(ROUND_S).p50_s * US),
            ("look-up, none traced, p50, us", lambda: by_plain.run(ROUND_S).p50_s * US),
            {**traced.pids, **by_traced.pids},
            conditions(MIDDLE, clients=1, traces="0.01 of the calls, with their statements"),
            {**plain.pids, **by_plain.pids},
        )
        result.conditions["spans received"] = len(collector.spans)
    return result
