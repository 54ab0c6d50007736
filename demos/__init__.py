"""Demonstrate Sediment on real servers: `python -m demos`; not part of the wheel."""
