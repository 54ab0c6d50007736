"""Read both data sources as a program of a user does, on the executors of its session."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_sediment import register


def main(argv: Sequence[str]) -> None:
    """Count the segments and the records of a topic: RSM's and RLMM's address, topic, result."""
    rsm, rlmm, topic, result = argv
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    register(spark)  # As a cell of a notebook that is run again.
    to_rlmm = {"rlmm": rlmm, "topic": topic}
    segments = spark.read.format("sediment").options(**to_rlmm).load()
    records = (
        spark.read.format("sediment-records").options(rlmm=rlmm, rsm=rsm, subscribe=topic).load()
    )
    # In tasks: a count needs no worker of Python's.
    offsets = records.select("offset").rdd.map(lambda row: row.offset).collect()
    found = {"segments": segments.count(), "offsets": sorted(offsets)}
    spark.stop()
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
