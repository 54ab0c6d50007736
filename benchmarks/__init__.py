"""What quality is measured by: `make bench`, or `make bench BENCH=name`.

A figure is a ratio of two things measured in one run, turn by turn. Each module has `run() ->
Result`; the tables go to the terminal, the samples to build/bench/<name>.json. Nothing here says
pass or fail.
"""
