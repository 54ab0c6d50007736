"""Measure Sediment's figures of quality: `make bench`, or `make bench BENCH=name`.

A figure is a ratio of two sides measured alternately in one run. Each module has `run() -> Result`;
the tables go to the terminal, the samples to build/bench/<name>.json. No benchmark passes or fails.
"""
