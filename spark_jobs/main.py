"""Run a job by its name: `spark-submit --py-files WHEEL main.py retention`, or `python -m`."""

import sys
from collections.abc import Callable, Sequence

from spark_jobs import partition_removal_sweep, retention_sweep
from spark_jobs.checks.options import (
    CheckReport,
    ReconcileConfig,
    ScrubConfig,
    parse_reconcile,
    parse_scrub,
)
from spark_jobs.launch import run_as_program
from spark_jobs.stages import Engine
from spark_jobs.sweep import SweepRun
from spark_jobs.sweep_error import EXIT_REFUSED

Job = Callable[[Sequence[str]], int]


def _retention(argv: Sequence[str]) -> int:
    job = retention_sweep
    return run_as_program(job.JOB, lambda: job.parse_args(argv), job.run)


def _removal(argv: Sequence[str]) -> int:
    job = partition_removal_sweep
    return run_as_program(job.JOB, lambda: job.parse_args(argv), job.run)


def _reconcile(argv: Sequence[str]) -> int:
    def run(engine: Engine, this: SweepRun, config: ReconcileConfig) -> CheckReport:
        from spark_jobs.checks import reconcile_job  # noqa: PLC0415  # needs Spark

        return reconcile_job.run(engine, this, config)

    return run_as_program("reconcile", lambda: parse_reconcile(argv), run)


def _scrub(argv: Sequence[str]) -> int:
    def run(engine: Engine, this: SweepRun, config: ScrubConfig) -> CheckReport:
        from spark_jobs.checks import scrub_job  # noqa: PLC0415  # needs Spark

        return scrub_job.run(engine, this, config)

    return run_as_program("scrub", lambda: parse_scrub(argv), run)


JOBS: dict[str, Job] = {
    "retention": _retention,
    "removal": _removal,
    "reconcile": _reconcile,
    "scrub": _scrub,
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
