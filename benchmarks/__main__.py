"""`python -m benchmarks [NAME]`: run one benchmark, or all."""

import sys
from collections.abc import Callable

from benchmarks import (
    plugin_catch_up,
    rlm_ship,
    rsm_copy,
    service_memory,
    spark_delete,
    spark_scan,
)
from benchmarks.measure import Result, report

BENCHMARKS: dict[str, Callable[[], Result]] = {
    "rsm_copy": rsm_copy.run,
    "rlm_ship": rlm_ship.run,
    "service_memory": service_memory.run,
    "plugin_catch_up": plugin_catch_up.run,
    "spark_delete": spark_delete.run,
    "spark_scan": spark_scan.run,
}


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise SystemExit(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    for name in names or BENCHMARKS:
        report(BENCHMARKS[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
