"""The Java that Kafka and its tools run on."""

import re
import shutil
import subprocess

MINIMUM_JAVA = 17


class JavaMissingError(RuntimeError):
    """No java on the PATH, or one that is too old."""


def find_java() -> str:
    """The java on the PATH.

    Raises:
        JavaMissingError: there is none, or it is too old for Kafka.
    """
    java = shutil.which("java")
    if java is None:
        raise JavaMissingError(
            f"java is not on the PATH: Kafka needs a Java runtime, {MINIMUM_JAVA} or newer"
        )
    command = [java, "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    match = re.search(r'version "(\d+)', done.stderr + done.stdout)
    if match is None or int(match[1]) < MINIMUM_JAVA:
        found = match[1] if match else "unknown"
        raise JavaMissingError(
            f"Kafka needs Java {MINIMUM_JAVA} or newer; the java on the PATH is version {found}"
        )
    return java
