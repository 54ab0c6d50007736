"""Read what RLMM keeps as tables of Spark: `spark.read.format("sediment")`."""
