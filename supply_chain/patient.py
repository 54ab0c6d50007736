"""Run a command, and say every five seconds that it still runs: `patient.py WHAT COMMAND...`.

Needs nothing but Python, because it runs before anything is installed.
"""

import signal
import subprocess
import sys
import time

INTERVAL_S = 5.0


def run(what: str, command: list[str]) -> int:
    """Run the command to its end and return its exit code; pass SIGTERM on to it."""
    began = time.monotonic()
    sys.stderr.write(f"{what} ...\n")
    with subprocess.Popen(command) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        while True:
            try:
                return process.wait(INTERVAL_S)
            except subprocess.TimeoutExpired:
                seconds = time.monotonic() - began
                sys.stderr.write(f"{what}: {seconds:.0f} s so far\n")
            except KeyboardInterrupt:  # the command got it, too
                continue


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
