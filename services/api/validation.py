"""Small checks that raise InvalidRequestError with the path of the field at fault."""

from collections.abc import Sized

from services.api.errors import InvalidRequestError

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def require(holds: bool, field: str, rule: str) -> None:
    """Raise InvalidRequestError("field: rule") unless `holds`."""
    if not holds:
        raise InvalidRequestError(f"{field}: {rule}")


def require_count(items: Sized, field: str, most: int) -> None:
    """Raise InvalidRequestError where there are none or too many."""
    require(1 <= len(items) <= most, field, f"must be 1 to {most}, are {len(items)}")


def require_int32(value: int, field: str, *, at_least: int = 0) -> None:
    if not at_least <= value <= INT32_MAX:
        raise InvalidRequestError(f"{field}: must be {at_least} to {INT32_MAX}, is {value}")


def require_int64(value: int, field: str, *, at_least: int = 0) -> None:
    if not at_least <= value <= INT64_MAX:
        raise InvalidRequestError(f"{field}: must be {at_least} to 2^63-1, is {value}")


class within:
    """Put `path` and a dot before the field path of an InvalidRequestError raised inside.

    A class, as contextlib's generators take four times as long, and batches enter thousands.
    """

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, InvalidRequestError):
            raise type(error)(f"{self._path}.{error}") from error
