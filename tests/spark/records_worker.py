"""Run one task of the records source as Spark's Python worker does, and write its memory.

Its standard input has the reader and the partition, pickled. It writes as JSON the records and, in
MiB, how much the process has grown at most while it read.
"""

import json
import pickle
import resource
import sys

MIB = 1024


def main() -> None:
    reader, partition = pickle.load(sys.stdin.buffer)
    # Read with what stays in memory: connections, threads and imports.
    records = next(iter(reader.read(partition))).num_rows
    before = _peak_mib()
    records = sum(batch.num_rows for batch in reader.read(partition))
    json.dump({"records": records, "grown_mib": _peak_mib() - before}, sys.stdout)


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // MIB


if __name__ == "__main__":
    main()
