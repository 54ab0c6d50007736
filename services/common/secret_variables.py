"""Name the environment variables that child processes must not inherit from a shell, and remove
those that would override what a URL says.
"""

import os
import re

SERVICES = ("RSM_", "RLMM_", "RLM_")
"""The prefixes of the services' settings."""

SECRETS = frozenset(
    {
        "AWS_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SECRET_KEY",
        "AWS_SESSION_TOKEN",
        "PGPASSWORD",
    }
)
"""What AWS, S3 and PostgreSQL clients read. An id without its secret would be an error to them."""


_OF_LIBPQ = re.compile("PG[A-Z]+")


def forget_libpq_variables() -> None:
    """Remove from this process's environment all variables that PostgreSQL's client library reads.

    They would choose address, TLS, login and session settings beside those of a URL; no parameter
    of a connection overrides PGSERVICE, PGTZ and PGDATESTYLE.
    """
    for name in filter(_OF_LIBPQ.fullmatch, [*os.environ]):
        del os.environ[name]


def is_private(name: str) -> bool:
    """Return whether a variable is a setting of a service or a secret of S3 or PostgreSQL."""
    return name.startswith(SERVICES) or name in SECRETS
