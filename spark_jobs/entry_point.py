"""Start what a container of the Spark image is to run: an executor for Kubernetes, or a command.

Spark gives its executors' containers the argument `executor` and variables with the rest.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from spark_jobs.sweeps.sweep_error import EXIT_REFUSED

EXECUTOR = "executor"
_MAIN = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_JAVA_OPTION = re.compile(r"SPARK_JAVA_OPT_([0-9]+)")


class MissingVariablesError(Exception):
    """Spark did not start this container as an executor."""


def executor_command(environment: Mapping[str, str], spark_home: Path) -> list[str]:
    """Return the command of an executor, from the variables that Spark sets.

    Raises:
        MissingVariablesError: some are not set; names them.
    """
    missing = [
        name for name in (*_OPTIONS.values(), "SPARK_EXECUTOR_MEMORY") if name not in environment
    ]
    if missing:
        raise MissingVariablesError(
            f"{EXECUTOR}: Spark sets {', '.join(missing)} for its executors, but they are not set; "
            "start executors with spark.master=k8s://..., not by hand"
        )
    options = ((_JAVA_OPTION.fullmatch(name), value) for name, value in environment.items())
    numbered = sorted((int(match[1]), value) for match, value in options if match)
    classpath = (
        environment.get("SPARK_CONF_DIR", str(spark_home / "conf")),
        environment.get("SPARK_CLASSPATH", ""),
        f"{spark_home}/jars/*",
        environment.get("SPARK_EXTRA_CLASSPATH", ""),
        environment.get("SPARK_DIST_CLASSPATH", ""),
    )
    home = environment.get("JAVA_HOME")
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    return [
        f"{home}/bin/java" if home else "java",
        *(value for _, value in numbered),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        os.pathsep.join(filter(None, classpath)),
        _MAIN,
        *(text for option, name in _OPTIONS.items() for text in (option, environment[name])),
    ]


def main(argv: Sequence[str]) -> int:
    """Replace this process by an executor or by the command in `argv`."""
    command = list(argv)
    if argv[:1] == [EXECUTOR]:
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            sys.stderr.write(f"{EXECUTOR}: this image has no Spark; use docker/Dockerfile.spark\n")
            return EXIT_REFUSED
        home = Path(os.environ.setdefault("SPARK_HOME", str(Path(spec.origin).parent)))
        try:
            command = executor_command(os.environ, home)
        except MissingVariablesError as e:
            sys.stderr.write(f"{e}\n")
            return EXIT_REFUSED
    if not command:
        sys.stderr.write("no command; give `executor`, or a command such as `sediment --help`\n")
        return EXIT_REFUSED
    try:
        os.execvp(command[0], command)
    except OSError as e:
        sys.stderr.write(f"{command[0]}: {e.strerror}\n")
        return EXIT_REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
