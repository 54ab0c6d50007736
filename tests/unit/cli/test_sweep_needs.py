import sys

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.output import EXIT_FAILED, CommandError


@pytest.mark.parametrize("sweep", ["retention", "removal"])
def test_without_spark_it_says_what_to_install(sweep: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "spark_jobs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    options = ["--grace-ms", "0"] if sweep == "removal" else []
    error = CliRunner().invoke(app, ["sweep", sweep, *options]).exception
    assert isinstance(error, CommandError)
    assert f"{sys.executable} -m pip install -e '.[spark]'" in str(error)
    assert error.exit_code == EXIT_FAILED
