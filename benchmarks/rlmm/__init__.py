"""Measure RLMM's cost beyond PostgreSQL and gRPC: the benchmarks rlmm_*, and their parts."""
