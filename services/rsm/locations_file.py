"""Describe the current location, and read the file of all locations (RSM_LOCATIONS_FILE)."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from services.common.bounded_file import read_bounded
from services.common.settings import plain_fault
from services.rsm.backends.kinds import entry_problem, require_known, store_kind
from services.rsm.backends.s3_policy import S3Policy
from services.rsm.directory_keys import MAX_KEYS, KeysError
from services.rsm.foreign_keys import KeyPairs
from services.rsm.foreign_layouts import (
    AIVEN_SUFFIXES,
    AIVEN_TEMPLATE,
    AivenLayout,
    ForeignLayout,
    LocalTieredStorageLayout,
    template_problem,
)
from services.rsm.settings import (
    ENDPOINT_PATTERN,
    MAX_LOCATION_ID,
    MAX_PREFIX_LENGTH,
    PREFIX_PATTERN,
    PUBLIC_ENDPOINT_PATTERN,
    BucketName,
    RsmSettings,
)
from services.rsm.transforms import DEFAULT_LEVEL, MAX_LEVEL, NO_TRANSFORMS, TransformPolicy

_MAX_REGISTRY_BYTES = 1024 * 1024
_OF_SETTINGS = (
    *("backend", "prefix", "directory", "endpoint", "region", "bucket", "secure"),
    *("public_endpoint", "access_key_file", "secret_key_file"),
)
"""What the settings say of the current location, whatever its entry in the file says."""

_MAX_PATTERNS = 1000


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as e:
        raise ValueError(f"not a regular expression: {e}") from e
    return pattern


TopicPattern = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_compiles)]
Suffix = Annotated[str, Field(pattern=r"^\.[A-Za-z0-9._-]{1,100}$")]


class RegisteredLocation(S3Policy):
    """The current location, or one [[location]] of the file.

    Attributes:
        layout: "sediment", or whose objects they are.
        read_only: None: only those of another layout.
        mirror: the number of another location that has copies of all objects, under the same keys.
        topics: regular expressions, each of whole names of topics, whose segments are copied here.
        key_template, suffixes: of the layout "aiven": the plugin's ObjectKeyFactory.
        key_pairs: of the layout "aiven": the files of its private keys, by id.
        access_key_file, secret_key_file: contain the credentials. None if RSM's own are used.
        proxy: URL of an HTTP proxy to the store; "": none.
        proxy_credentials_file: contains user:password.
        options: what only this kind of store knows (StoreKind.options).
    """

    id: int = Field(ge=1, le=MAX_LOCATION_ID, strict=True)
    backend: Annotated[str, AfterValidator(require_known)]
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
    proxy: str = Field(
        default="", pattern=r"^(http://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5})?$"
    )
    proxy_credentials_file: Path | None = None
    layout: Literal["sediment", "local-tiered-storage", "aiven"] = "sediment"
    read_only: bool | None = Field(default=None, strict=True)
    mirror: int | None = Field(default=None, ge=1, le=MAX_LOCATION_ID, strict=True)
    topics: list[TopicPattern] = Field(default_factory=list, max_length=_MAX_PATTERNS)
    key_template: str = AIVEN_TEMPLATE
    suffixes: dict[str, Suffix] = Field(default_factory=dict)
    key_pairs: dict[str, Path] = Field(default_factory=dict, max_length=MAX_KEYS)
    options: dict[str, str] = Field(default_factory=dict)
    compression: Literal["zstd"] | None = None
    compression_level: int = Field(default=DEFAULT_LEVEL, ge=1, le=MAX_LEVEL, strict=True)
    encryption: bool = Field(default=False, strict=True)

    @model_validator(mode="after")
    def _has_what_the_backend_needs(self) -> Self:
        if problem := entry_problem(self.backend, self):
            raise ValueError(problem)
        if (self.access_key_file is None) != (self.secret_key_file is None):
            raise ValueError("access_key_file and secret_key_file go together")
        if self.proxy_credentials_file is not None and not self.proxy:
            raise ValueError("proxy_credentials_file goes with proxy")
        if self.backend != "s3" and (others := self.set_properties()):
            raise ValueError(f'{", ".join(others)}: only with backend = "s3"')
        for name in ("directory", "access_key_file", "secret_key_file", "proxy_credentials_file"):
            if "\0" in str(getattr(self, name)):
                raise ValueError(f"{name} has a NUL character")
        if self.topics and (self.layout != "sediment" or self.is_read_only):
            raise ValueError('topics go with layout = "sediment" and not with read_only = true')
        is_plain = self.key_template == AIVEN_TEMPLATE and not (self.suffixes or self.key_pairs)
        if self.layout != "aiven" and not is_plain:
            raise ValueError('key_template, suffixes and key_pairs go with layout = "aiven"')
        if set(self.suffixes) - set(AIVEN_SUFFIXES):
            raise ValueError(f"suffixes may have {', '.join(AIVEN_SUFFIXES)}")
        if self.layout != "sediment" and self.transforms != NO_TRANSFORMS:
            raise ValueError('compression and encryption go with layout = "sediment"')
        if problem := template_problem(self.key_template):
            raise ValueError(f"key_template {problem}")
        return self

    @property
    def is_read_only(self) -> bool:
        return self.layout != "sediment" if self.read_only is None else self.read_only

    @property
    def transforms(self) -> TransformPolicy:
        """Return what is done with the chunks of new copies."""
        level = None if self.compression is None else self.compression_level
        return TransformPolicy(level, self.encryption)

    def foreign_layout(self) -> ForeignLayout | None:
        """Return the layout that another storage gave the objects; None if it is RSM's own.

        Raises:
            SystemExit: a file of a private key cannot be used.
        """
        if self.layout == "sediment":
            return None
        if self.layout == "local-tiered-storage":
            return LocalTieredStorageLayout()
        suffixes = {**AIVEN_SUFFIXES, **self.suffixes}
        try:
            return AivenLayout(self.key_template, suffixes, KeyPairs(self.key_pairs))
        except KeysError as e:
            raise SystemExit(f"RSM_LOCATIONS_FILE: key_pairs of location {self.id}: {e}") from e

    def topic_patterns(self) -> tuple[re.Pattern[str], ...]:
        return tuple(map(re.compile, self.topics))

    @property
    def place(self) -> tuple[str, ...]:
        """Return the values that distinguish two places."""
        return (self.backend, *store_kind(self.backend).place(self))

    def __str__(self) -> str:
        """Describe the place for people, without credentials."""
        return store_kind(self.backend).describe(self)


class VaultTable(BaseModel):
    """The [keys.vault] of the file: one key of a transit engine.

    Attributes:
        token_file: contains the token, and is read for each request.
        ca_file: the authorities of Vault's certificate; None: those of the system.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    address: str = Field(pattern=r"^https?://[A-Za-z0-9.:\[\]_-]+(/[A-Za-z0-9._/-]*)?$")
    mount: str = Field(default="transit", pattern=r"^[A-Za-z0-9._/-]{1,128}$")
    key: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    token_file: Path
    ca_file: Path | None = None


class KeysTable(BaseModel):
    """The [keys] of the file: where the ring's keys are.

    Attributes:
        directory: has a file for each key, and one that names the current key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    directory: Path | None = None
    vault: VaultTable | None = None

    @model_validator(mode="after")
    def _has_one_provider(self) -> Self:
        if (self.directory is None) == (self.vault is None):
            raise ValueError("needs either directory or [keys.vault]")
        return self


class _LocationsFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    location: list[RegisteredLocation] = []
    keys: KeysTable | None = None

    @model_validator(mode="after")
    def _has_keys_to_encrypt(self) -> Self:
        encrypted = [str(each.id) for each in self.location if each.encryption]
        if encrypted and self.keys is None:
            raise ValueError(f"encryption of location {', '.join(encrypted)} needs [keys]")
        return self


def _of_settings(settings: RsmSettings, options: dict[str, str]) -> RegisteredLocation:
    """Return the place of the settings, whose credentials are RSM's own."""
    return RegisteredLocation(
        id=settings.location_id,
        backend=settings.backend,
        prefix=settings.prefix,
        directory=settings.directory,
        endpoint=settings.endpoint,
        region=settings.region,
        bucket=settings.bucket,
        secure=settings.secure,
        public_endpoint=settings.public_store_endpoint,
        options=options,
    )


def registered_locations(settings: RsmSettings) -> list[RegisteredLocation]:
    """Return the current location, and those of the file, in the file's order.

    The current one comes first, unless the file lists it: then it is the place of the settings with
    the properties of its entry. So a location can be registered everywhere before it becomes the
    current one.

    Raises:
        SystemExit: the file cannot be read, has an unknown key, a bad value, a number twice, or a
            place under two numbers; the message names the fault.
    """
    if settings.locations_file is None:
        return [_of_settings(settings, {})]
    what = f"RSM_LOCATIONS_FILE: {settings.locations_file}"
    listed = _read(settings.locations_file, what).location
    _require_unique_numbers(listed, what)
    for at, entry in enumerate(listed):
        if entry.id == settings.location_id:
            listed[at] = _current_of(entry, settings, what)
            break
    else:
        listed.insert(0, _of_settings(settings, {}))
    _require_unique_places(listed, what)
    _require_mirrors(listed, settings.location_id, what)
    return listed


def _current_of(entry: RegisteredLocation, settings: RsmSettings, what: str) -> RegisteredLocation:
    """Return the current location: the place of the settings, with the properties of its entry."""
    same_kind = entry.backend == settings.backend
    current = _of_settings(settings, entry.options if same_kind else {})
    if entry.layout != "sediment" or entry.is_read_only:
        raise SystemExit(f"{what}: location {entry.id} is the current one, which is written")
    if entry.place != current.place:
        raise SystemExit(
            f"{what}: location {entry.id} is {entry} in the file, but {current} in the "
            "settings; set RSM_LOCATION_ID to a new number for a new place"
        )
    return entry.model_copy(update={name: getattr(current, name) for name in _OF_SETTINGS})


def current_location(settings: RsmSettings) -> RegisteredLocation:
    """Return the location that is written, with the properties that the file has of it.

    Raises:
        SystemExit: as registered_locations.
    """
    listed = registered_locations(settings)
    return next(each for each in listed if each.id == settings.location_id)


def keys_table(settings: RsmSettings) -> KeysTable | None:
    """Read where the ring's keys are; None if the file says nothing of them.

    Raises:
        SystemExit: as other_locations; or keys are set, and RSM_DEPLOYMENT_ID is not.
    """
    if settings.locations_file is None:
        return None
    what = f"RSM_LOCATIONS_FILE: {settings.locations_file}"
    keys = _read(settings.locations_file, what).keys
    if keys is not None and not settings.deployment_id:
        raise SystemExit(f"{what}: [keys] needs RSM_DEPLOYMENT_ID, to which data keys are bound")
    return keys


def _read(path: Path, what: str) -> _LocationsFile:
    try:
        document = tomllib.loads(read_bounded(path, _MAX_REGISTRY_BYTES).decode())
    except OSError as e:
        raise SystemExit(f"{what}: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        # A ValueError also for a number of thousands of digits.
        raise SystemExit(f"{what}: not TOML: {e}") from e
    try:
        return _LocationsFile.model_validate(document)
    except ValidationError as e:
        complaints = e.errors(include_input=False)
        raise SystemExit(
            "\n".join(f"{what}: {_named(c['loc'])}{plain_fault(c)}" for c in complaints)
        ) from e


def _named(location: tuple[int | str, ...]) -> str:
    """Format an error's location: ("location", 1, "id") becomes "location entry 2, id: "."""
    words = [f"entry {part + 1}," if isinstance(part, int) else part for part in location]
    return f"{' '.join(words).rstrip(',')}: " if words else ""


def _require_unique_numbers(listed: list[RegisteredLocation], what: str) -> None:
    ids: set[int] = set()
    for location in listed:
        if location.id in ids:
            raise SystemExit(f"{what}: id {location.id} is given to two locations")
        ids.add(location.id)


def _require_unique_places(locations: list[RegisteredLocation], what: str) -> None:
    ids: dict[tuple[str, ...], int] = {}
    for location in locations:
        first = ids.setdefault(location.place, location.id)
        if first != location.id:
            raise SystemExit(
                f"{what}: locations {first} and {location.id} are the same place, {location}"
            )


def _require_mirrors(listed: list[RegisteredLocation], current_id: int, what: str) -> None:
    """Check that each mirror is a location of its own, in which only copies are."""
    by_id = {each.id: each for each in listed}
    mirrored: dict[int, int] = {}
    for each in (each for each in listed if each.mirror is not None):
        mirror = by_id.get(each.mirror or 0)
        if mirror is None:
            fault = "is not registered"
        elif mirror.id in (each.id, current_id) or mirror.topics or mirror.mirror is not None:
            fault = "must be another one, that is not written and has no mirror"
        elif (mirror.layout, each.layout) != ("sediment", "sediment"):
            fault = 'must have layout = "sediment", as the location that it mirrors'
        elif mirror.prefix != each.prefix:
            fault = f"has prefix {mirror.prefix!r}, must be {each.prefix!r}: the keys are the same"
        elif mirrored.setdefault(mirror.id, each.id) != each.id:
            fault = f"is the mirror of location {mirrored[mirror.id]}"
        else:
            continue
        raise SystemExit(f"{what}: mirror of location {each.id}: location {each.mirror} {fault}")
