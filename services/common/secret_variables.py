"""Name the environment variables that child processes must not inherit from a shell."""

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


def is_private(name: str) -> bool:
    """Return whether a variable is a setting of a service or a secret of S3 or PostgreSQL."""
    return name.startswith(SERVICES) or name in SECRETS
