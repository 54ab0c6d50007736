"""Know of which release this installation is."""

from functools import cache


@cache
def release() -> str:
    """Return the version of the installed package; "unknown" if it is not installed."""
    # `sediment --help` need not wait for it.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("sediment")
    except PackageNotFoundError:
        return "unknown"
