"""`python as_user.py USER PROGRAM [ARGUMENT ...]`: become that user, then that program; needs root.

In the place of subprocess' own `user`, for which it forks in the old way: gRPC's handlers then run
in the child, and where a channel is in use that now and then ends it (SIGSEGV) before it is
anything.
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
