"""Read the file of the other locations (RSM_LOCATIONS_FILE)."""

import tomllib
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from services.common.bounded_file import read_bounded
from services.rsm.settings import (
    ENDPOINT_PATTERN,
    MAX_LOCATION_ID,
    MAX_PREFIX_LENGTH,
    PREFIX_PATTERN,
    PUBLIC_ENDPOINT_PATTERN,
    REQUIRED,
    BucketName,
    RsmSettings,
)

_MAX_REGISTRY_BYTES = 1024 * 1024

Place = tuple[str, ...]
"""The values that distinguish two places."""


class RegisteredLocation(BaseModel):
    """One [[location]] of the file.

    Attributes:
        access_key_file, secret_key_file: contain the credentials. None if RSM's own are used.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: int = Field(ge=1, le=MAX_LOCATION_ID, strict=True)
    backend: Literal["s3", "filesystem"]
    # Required: an entry that is cut off must not name the whole bucket.
    prefix: str = Field(pattern=PREFIX_PATTERN, max_length=MAX_PREFIX_LENGTH)
    directory: Path | None = None
    endpoint: str = Field(default="", pattern=ENDPOINT_PATTERN)
    region: str = ""
    bucket: BucketName = ""
    secure: bool = Field(default=True, strict=True)
    public_endpoint: str = Field(default="", pattern=PUBLIC_ENDPOINT_PATTERN, max_length=300)
    access_key_file: Path | None = None
    secret_key_file: Path | None = None

    @model_validator(mode="after")
    def _has_what_the_backend_needs(self) -> Self:
        missing = [name for name in REQUIRED[self.backend] if not getattr(self, name)]
        if missing:
            raise ValueError(f'backend = "{self.backend}" also needs {", ".join(missing)}')
        if (self.access_key_file is None) != (self.secret_key_file is None):
            raise ValueError("access_key_file and secret_key_file go together")
        for name in ("directory", "access_key_file", "secret_key_file"):
            if "\0" in str(getattr(self, name)):
                raise ValueError(f"{name} has a NUL character")
        return self


class _LocationsFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    location: list[RegisteredLocation] = []


def other_locations(settings: RsmSettings) -> list[RegisteredLocation]:
    """Read the locations in the file other than the current one; none if no file is set.

    The current one may be listed too, exactly as the settings describe it, so that a location can
    be registered everywhere before it becomes the current one.

    Raises:
        SystemExit: the file cannot be read, has an unknown key, a bad value, a number twice, or a
            place under two numbers; the message names the fault.
    """
    if settings.locations_file is None:
        return []
    what = f"RSM_LOCATIONS_FILE: {settings.locations_file}"
    listed = _read(settings.locations_file, what)
    _require_unique_numbers(listed, what)
    current = place_of(settings)
    for location in listed:
        if location.id == settings.location_id and place_of(location) != current:
            raise SystemExit(
                f"{what}: location {location.id} is {described(location)} in the file, but "
                f"{described(settings)} in the settings; set RSM_LOCATION_ID to a new number for a "
                "new place"
            )
    others = [location for location in listed if location.id != settings.location_id]
    _require_unique_places({current: settings.location_id}, others, what)
    return others


def place_of(location: RegisteredLocation | RsmSettings) -> Place:
    """Return a key that is equal for two descriptions of one place."""
    if location.backend == "filesystem":
        directory = location.directory or Path()
        return (location.backend, str(directory.resolve()), location.prefix)
    return (location.backend, location.endpoint.lower(), location.bucket, location.prefix)


def described(location: RegisteredLocation | RsmSettings) -> str:
    """Describe a place for people, without credentials."""
    if location.backend == "filesystem":
        return f"prefix {location.prefix!r} of directory {str(location.directory)!r}"
    return f"prefix {location.prefix!r} of bucket {location.bucket!r} at {location.endpoint}"


def _read(path: Path, what: str) -> list[RegisteredLocation]:
    try:
        document = tomllib.loads(read_bounded(path, _MAX_REGISTRY_BYTES).decode())
    except OSError as e:
        raise SystemExit(f"{what}: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        # A ValueError also for a number of thousands of digits.
        raise SystemExit(f"{what}: not TOML: {e}") from e
    try:
        return _LocationsFile.model_validate(document).location
    except ValidationError as e:
        complaints = e.errors(include_input=False)
        raise SystemExit(
            "\n".join(f"{what}: {_named(c['loc'])}{_said(c['type'], c['msg'])}" for c in complaints)
        ) from e


def _named(location: tuple[int | str, ...]) -> str:
    """Format an error's location: ("location", 1, "id") becomes "location entry 2, id: "."""
    words = [f"entry {part + 1}," if isinstance(part, int) else part for part in location]
    return f"{' '.join(words).rstrip(',')}: " if words else ""


def _said(kind: str, message: str) -> str:
    return "unknown key" if kind == "extra_forbidden" else message.removeprefix("Value error, ")


def _require_unique_numbers(listed: list[RegisteredLocation], what: str) -> None:
    seen: set[int] = set()
    for location in listed:
        if location.id in seen:
            raise SystemExit(f"{what}: id {location.id} is given to two locations")
        seen.add(location.id)


def _require_unique_places(
    ids: dict[Place, int], others: list[RegisteredLocation], what: str
) -> None:
    for location in others:
        first = ids.setdefault(place_of(location), location.id)
        if first != location.id:
            raise SystemExit(
                f"{what}: locations {first} and {location.id} are the same place, "
                f"{described(location)}"
            )
