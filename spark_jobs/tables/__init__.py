"""Read RLMM's metadata as tables of Spark: `spark.read.format("sediment")`."""
