"""Check that a patient command ends with its signals."""

import signal
import subprocess
import sys

from supply_chain import patient

TOLD = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
signal.pause()
"""


def test_a_signal_reaches_the_command_and_its_exit_code_returns() -> None:
    command = [sys.executable, patient.__file__, "waiting", sys.executable, "-c", TOLD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 7
