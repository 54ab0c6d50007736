"""Places where segments may be: the current location, and the registry of earlier ones."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from services.api.errors import CorruptSegmentError, RemoteResourceNotFoundError
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require
from services.rsm.backends.protocol import StorageBackend
from services.rsm.layout import FIELD, CustomMetadata, Manifest, SegmentKeys, segment_keys
from services.rsm.settings import (
    ENDPOINT_PATTERN,
    MAX_LOCATION_ID,
    MAX_PREFIX_LENGTH,
    PREFIX_PATTERN,
    BucketName,
    RsmSettings,
)


@dataclass(frozen=True, slots=True)
class Location:
    """One registered location. Its number is never given to another place.

    Attributes:
        prefix: of every key; empty or ending with a slash.
        place: where it is, for people; never with a credential.
    """

    location_id: int
    backend: StorageBackend
    prefix: str
    place: str = ""

    def __str__(self) -> str:
        return f"location {self.location_id} ({self.place or f'prefix {self.prefix!r}'})"

    def keys(self, metadata: RemoteLogSegmentMetadata) -> SegmentKeys:
        return segment_keys(self.prefix, metadata)

    def read_manifest(self, keys: SegmentKeys) -> Manifest:
        """The manifest of a segment.

        Raises:
            RemoteResourceNotFoundError: no copy of it is complete.
            CorruptSegmentError: there is something else under its key.
        """
        name = f"{keys.manifest} in {self}"
        manifest = Manifest.from_bytes(self.backend.get(keys.manifest), name)
        if self.keys(manifest.metadata) != keys:
            segment = manifest.metadata.remote_log_segment_id
            raise CorruptSegmentError(f"{name}: the manifest of another segment, {segment}")
        return manifest


class Locations:
    """The allow-list of places. What callers send names one of them by its number, or none."""

    def __init__(self, current: Location, others: Sequence[Location] = ()) -> None:
        """`others` are read and deleted from, never written to; no two have the same number."""
        self.current = current
        self.others = tuple(others)
        self._by_id = {location.location_id: location for location in self.all}

    @property
    def all(self) -> Sequence[Location]:
        """The current one first."""
        return (self.current, *self.others)

    def numbered(self, location_id: int) -> Location | None:
        """The location of a number; None: it is not registered."""
        return self._by_id.get(location_id)

    def named_by(
        self, metadata: RemoteLogSegmentMetadata
    ) -> tuple[Location, CustomMetadata] | None:
        """Where the copy was put, by what it answered; None: it never finished, as far as the
        caller knows, and may have left something in any location. Asks no store.

        Raises:
            InvalidRequestError: not of a known version, or of a location that is not registered.
        """
        if metadata.custom_metadata is None:
            return None
        found = CustomMetadata.from_bytes(metadata.custom_metadata)
        is_registered = found.location_id in self._by_id
        require(is_registered, FIELD, f"location {found.location_id} is not registered")
        return self._by_id[found.location_id], found

    def find(self, metadata: RemoteLogSegmentMetadata) -> tuple[Location, CustomMetadata]:
        """Where a segment's bytes are. Asks for manifests only where the caller does not know.

        Raises:
            InvalidRequestError: as named_by.
            RemoteResourceNotFoundError: no location has a complete copy.
        """
        named = self.named_by(metadata)
        if named is not None:
            return named
        for location in self.all:
            try:
                manifest = location.read_manifest(location.keys(metadata))
            except RemoteResourceNotFoundError:
                continue
            return location, manifest.custom_metadata(location.location_id)
        segment = metadata.remote_log_segment_id
        raise RemoteResourceNotFoundError(f"{segment}: no location has a complete copy")


_REQUIRED = {"s3": ("endpoint", "region", "bucket"), "filesystem": ("directory",)}

Place = tuple[str, ...]
"""What tells one place from another."""


class RegisteredLocation(BaseModel):
    """One [[location]] of the file.

    Attributes:
        access_key_file, secret_key_file: hold the credentials; without them RSM's own are used.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: int = Field(ge=1, le=MAX_LOCATION_ID, strict=True)
    backend: Literal["s3", "filesystem"]
    prefix: str = Field(default="", pattern=PREFIX_PATTERN, max_length=MAX_PREFIX_LENGTH)
    directory: Path | None = None
    endpoint: str = Field(default="", pattern=ENDPOINT_PATTERN)
    region: str = ""
    bucket: BucketName = ""
    secure: bool = Field(default=True, strict=True)
    access_key_file: Path | None = None
    secret_key_file: Path | None = None

    @model_validator(mode="after")
    def _has_what_the_backend_needs(self) -> Self:
        missing = [name for name in _REQUIRED[self.backend] if not getattr(self, name)]
        if missing:
            raise ValueError(f'backend = "{self.backend}" also needs {", ".join(missing)}')
        if (self.access_key_file is None) != (self.secret_key_file is None):
            raise ValueError("access_key_file and secret_key_file go together")
        return self


class _LocationsFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    location: list[RegisteredLocation] = []


def other_locations(settings: RsmSettings) -> list[RegisteredLocation]:
    """What the file lists but the current location; nothing where no file is set.

    The current one may be listed too, exactly as the settings describe it, so that a location can
    be registered everywhere before it becomes the current one.

    Raises:
        SystemExit: the file cannot be read, has an unknown key, a bad value, a number twice, or a
            place under two numbers; the text says which.
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
                f"{what}: location {location.id} is {described(location)} here, and by the "
                f"settings the current one, {described(settings)}: give a new place a number of "
                "its own in RSM_LOCATION_ID"
            )
    others = [location for location in listed if location.id != settings.location_id]
    _require_unique_places({current: settings.location_id}, others, what)
    return others


def place_of(location: RegisteredLocation | RsmSettings) -> Place:
    """Equal for two descriptions of one place."""
    if location.backend == "filesystem":
        directory = location.directory or Path()
        return (location.backend, str(directory.resolve()), location.prefix)
    return (location.backend, location.endpoint.lower(), location.bucket, location.prefix)


def described(location: RegisteredLocation | RsmSettings) -> str:
    """A place for people; names no credential."""
    if location.backend == "filesystem":
        return f"prefix {location.prefix!r} of directory {str(location.directory)!r}"
    return f"prefix {location.prefix!r} of bucket {location.bucket!r} at {location.endpoint}"


def read_key(path: Path) -> str:
    """A credential from a file of its own.

    Raises:
        SystemExit: it cannot be read, or is empty.
    """
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as e:
        raise SystemExit(f"{path}: cannot be read ({type(e).__name__})") from e
    if not key:
        raise SystemExit(f"{path}: is empty, should hold a key")
    return key


def _read(path: Path, what: str) -> list[RegisteredLocation]:
    try:
        document = tomllib.loads(path.read_text())
        return _LocationsFile.model_validate(document).location
    except OSError as e:
        raise SystemExit(f"{what}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise SystemExit(f"{what}: not TOML: {e}") from e
    except ValidationError as e:
        complaints = e.errors(include_input=False)
        raise SystemExit(
            "\n".join(f"{what}: {_named(c['loc'])}{_said(c['type'], c['msg'])}" for c in complaints)
        ) from e


def _named(location: tuple[int | str, ...]) -> str:
    """("location", 1, "id") -> "location entry 2, id: "."""
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
