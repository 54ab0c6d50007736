"""Read both data sources by the Spark that runs this program, and print what was read."""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyspark

from spark_jobs.spark_session import SparkSettings, spark_session


def main(argv: Sequence[str]) -> None:
    """Read segments, records and a stream of records: RSM's and RLMM's address, topic."""
    rsm, rlmm, topic = argv
    settings = SparkSettings("local[2]", conf=(("spark.sql.shuffle.partitions", "2"),))
    with (
        tempfile.TemporaryDirectory() as name,
        spark_session("sources", Path(name), Path(name) / "spark.log", settings) as spark,
    ):
        to_rlmm = {"rlmm": rlmm, "topic": topic}
        to_both = {"rlmm": rlmm, "rsm": rsm, "subscribe": topic, "startingOffsets": "earliest"}
        segments = spark.read.format("sediment").options(**to_rlmm).load()
        records = spark.read.format("sediment-records").options(**to_both).load()
        stream = spark.readStream.format("sediment-records").options(**to_both).load()
        query = (
            stream.writeStream.format("memory")
            .queryName("streamed")
            .option("checkpointLocation", f"{name}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found = {
            "spark": pyspark.__version__,
            "segments": segments.count(),
            "records": sorted(row.offset for row in records.select("offset").collect()),
            "streamed": sorted(row.offset for row in spark.sql("FROM streamed").collect()),
        }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
