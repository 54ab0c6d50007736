"""Run a program as another user; needs root.

Usage: `python as_user.py USER PROGRAM [ARGUMENT ...]`.

Replaces the option `user` of subprocess, which makes it fork: gRPC's fork handlers then run in the
child and, if a channel is in use, sometimes crash it (SIGSEGV) before it starts the program.
"""

import os
import pwd
import sys


def main(user: str, program: list[str]) -> None:
    account = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
