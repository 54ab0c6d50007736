"""The Spark image starts an executor from Spark's variables, or the command that it is given."""

import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.entry_point import MissingVariablesError, executor_command

OF_SPARK = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.1.2.3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "sweep-exec-3",
    "SPARK_EXECUTOR_MEMORY": "1024m",
}
HOME = Path("/spark")


def test_an_executor_gets_what_spark_says_of_it() -> None:
    command = executor_command(OF_SPARK, HOME)
    assert command[:5] == ["java", "-Xms1024m", "-Xmx1024m", "-cp", "/spark/conf:/spark/jars/*"]
    options = command[6:]
    assert dict(zip(options[::2], options[1::2], strict=True)) == {
        "--driver-url": OF_SPARK["SPARK_DRIVER_URL"],
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.1.2.3",
        "--resourceProfileId": "0",
        "--podName": "sweep-exec-3",
    }


def test_options_of_java_are_in_the_order_of_their_numbers() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Da={number}" for number in (10, 9, 0)}
    command = executor_command({**OF_SPARK, **options, "JAVA_HOME": "/java"}, HOME)
    assert command[:4] == ["/java/bin/java", "-Da=0", "-Da=9", "-Da=10"]


def test_configuration_and_jars_of_ones_own_are_on_the_class_path() -> None:
    own = {"SPARK_CONF_DIR": "/conf", "SPARK_CLASSPATH": "/own/*", "SPARK_DIST_CLASSPATH": "/last"}
    command = executor_command({**OF_SPARK, **own}, HOME)
    assert command[command.index("-cp") + 1] == "/conf:/own/*:/spark/jars/*:/last"


def test_variables_that_are_missing_are_named() -> None:
    given = {name: value for name, value in OF_SPARK.items() if "POD" not in name}
    with pytest.raises(MissingVariablesError) as refused:
        executor_command(given, HOME)
    assert "sets SPARK_EXECUTOR_POD_IP, SPARK_EXECUTOR_POD_NAME for" in str(refused.value)


@pytest.mark.parametrize(
    ("argv", "exit_code", "output"),
    [
        (["echo", "sediment", "sweep"], 0, "sediment sweep\n"),
        (["no-such-command"], 2, "no-such-command: No such file or directory\n"),
        ([], 2, "no command; give `executor`, or a command such as `sediment --help`\n"),
    ],
)
def test_a_container_runs_its_command(argv: list[str], exit_code: int, output: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spark_jobs.entry_point", *argv],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == exit_code
    assert (done.stdout + done.stderr).startswith(output)
