"""Sweeps: plan, mark, execute and report, on Spark or in this process."""
