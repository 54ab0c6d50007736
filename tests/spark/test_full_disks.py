"""A sweep whose disk is full ends with one line and the exit code of a failure."""

import re
from pathlib import Path

import pytest

from spark_jobs.main import main
from spark_jobs.sweeps.sweep_error import EXIT_FAILED
from tests.harness.small_limits import small_disk
from tests.spark.records_reads import ServedTier
from tests.spark.tiers import due_partitions

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]


@pytest.mark.parametrize("option", ["--work-dir", "TMPDIR"])
def test_a_full_disk_is_named_with_the_option_that_names_another(
    in_process: ServedTier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
) -> None:
    [tp] = due_partitions(in_process, 2)
    before = in_process.rows(tp)
    addresses = ["--rsm", in_process.rsm_address, "--rlmm", in_process.rlmm_address]
    argv = ["retention", *addresses, "--topic", tp.topic, "--engine", "local", "--apply"]
    with small_disk(tmp_path / "disk", 64 * 1024) as disk:
        disk.fill()
        if option == "TMPDIR":
            monkeypatch.setattr("tempfile.tempdir", str(disk.path))
        else:
            argv += [option, str(disk.path)]
        exit_code = main(argv)
    said = capsys.readouterr()
    assert (exit_code, said.out) == (EXIT_FAILED, ""), said.err
    last = said.err.splitlines()[-1]
    assert re.search(f"{option}: .*No space left on device; .* another directory", last), said.err
    assert "Traceback" not in said.err
    assert in_process.rows(tp) == before
