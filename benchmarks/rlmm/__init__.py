"""What RLMM costs beside PostgreSQL and gRPC themselves: the benchmarks rlmm_*, and their parts."""
