"""Run a program as another user; needs root.

Usage: `python as_user.py UID PROGRAM [ARGUMENT ...]`.

Replaces the option `user` of subprocess, which makes it fork: gRPC's fork handlers then run in the
child and, if a channel is in use, sometimes crash it (SIGSEGV) before it starts the program.
"""

import os
import sys


def main(uid: int, program: list[str]) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
