"""Run one task of the records source as Spark's Python worker does, and write its memory.

Its standard input has the reader and the partition, pickled. It writes as JSON the records and, in
MiB, how much the process has grown at most while it read.
"""

import json
import pickle
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def main() -> None:
    reader, partition = pickle.load(sys.stdin.buffer)
    before = _peak_mib()
    records = sum(batch.num_rows for batch in reader.read(partition))
    json.dump({"records": records, "grown_mib": _peak_mib() - before}, sys.stdout)


def _peak_mib() -> int:
    # Not ru_maxrss, which begins with that of the process that started this one.
    (line,) = [each for each in _STATUS.read_text().splitlines() if each.startswith("VmHWM:")]
    return int(line.split()[1]) // 1024


if __name__ == "__main__":
    main()
