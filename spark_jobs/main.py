"""Run a job by its name: `spark-submit --py-files WHEEL main.py retention`, or `python -m`."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from spark_jobs.checks.options import CheckReport, parse_rebuild, parse_reconcile, parse_scrub
from spark_jobs.launch import ConfigT, RunJob, run_as_program
from spark_jobs.options import parse_sweep
from spark_jobs.sweeps import partition_removal_sweep, retention_sweep
from spark_jobs.sweeps.stages import Engine
from spark_jobs.sweeps.sweep import SweepRun
from spark_jobs.sweeps.sweep_error import EXIT_REFUSED

Job = Callable[[Sequence[str]], int]


def _retention(argv: Sequence[str]) -> int:
    job = retention_sweep
    return run_as_program(job.JOB, lambda: parse_sweep(job.JOB, "--copy-grace", argv), job.run)


def _removal(argv: Sequence[str]) -> int:
    job = partition_removal_sweep
    return run_as_program(job.JOB, lambda: parse_sweep(job.JOB, "--grace", argv), job.run)


def _reconcile(argv: Sequence[str]) -> int:
    return _check("reconcile", lambda: parse_reconcile(argv))


def _scrub(argv: Sequence[str]) -> int:
    return _check("scrub", lambda: parse_scrub(argv))


def _rebuild(argv: Sequence[str]) -> int:
    return _check("rebuild", lambda: parse_rebuild(argv))


def _check(name: str, parse: Callable[[], ConfigT]) -> int:
    def run(engine: Engine, this: SweepRun, config: ConfigT) -> CheckReport:
        # Not at the top: it needs Spark, which a sweep in this process does not.
        job: RunJob[ConfigT, CheckReport] = import_module(f"spark_jobs.checks.{name}_job").run
        return job(engine, this, config)

    return run_as_program(name, parse, run)


def _export(argv: Sequence[str]) -> int:
    # Not at the top: it needs Spark and the records source, which sweeps do without.
    return int(import_module("spark_jobs.export.job").run_as_program(argv))


JOBS: dict[str, Job] = {
    "retention": _retention,
    "removal": _removal,
    "reconcile": _reconcile,
    "scrub": _scrub,
    "rebuild": _rebuild,
    "export": _export,
}


def main(argv: Sequence[str]) -> int:
    """Run the job that the first argument names; return its exit code."""
    name, *arguments = argv or [""]
    job = JOBS.get(name)
    if job is None:
        sys.stderr.write(
            f"main.py: {name!r} is not a job; the first argument must be one of {', '.join(JOBS)}; "
            "`main.py JOB --help` prints its options\n"
        )
        return EXIT_REFUSED
    return job(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
