"""Find the kinds of store by name: those built in, and entry points of other packages.

A package adds a kind by an entry point of the group `sediment.backends`, whose name is what
RSM_BACKEND and `backend` of RSM_LOCATIONS_FILE then take, and whose value is a StoreKind:

    [project.entry-points."sediment.backends"]
    tape = "my_package.tape:TapeKind"
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from services.common.bounded_file import SecretFileError, read_secret
from services.rsm.active_copies import Waiter
from services.rsm.backends.protocol import StorageBackend
from services.rsm.locations import Location
from services.rsm.probe import StoreProbe, StoreRule

if TYPE_CHECKING:
    from services.rsm.settings import RsmSettings

GROUP = "sediment.backends"

# Not from the metadata of the installed package: these work from a source tree too, and no other
# package takes their names.
_BUILT_IN = {
    "s3": "services.rsm.backends.s3_kind:S3Kind",
    "gcs": "services.rsm.backends.cloud_kinds:GcsKind",
    "azure": "services.rsm.backends.cloud_kinds:AzureKind",
    "filesystem": "services.rsm.backends.filesystem:FilesystemKind",
}


class LocationEntry(Protocol):
    """What the settings, or an entry of RSM_LOCATIONS_FILE, say of one location.

    Attributes:
        bucket: the bucket, container or the like; "" if none is given.
        endpoint: HOST:PORT; "" for the address that the kind knows.
        proxy: URL of an HTTP proxy to the store; "": none.
        proxy_credentials_file: contains user:password.
        options: what only this kind of store knows; never a secret, but files with one.
    """

    @property
    def id(self) -> int: ...
    @property
    def prefix(self) -> str: ...
    @property
    def directory(self) -> Path | None: ...
    @property
    def endpoint(self) -> str: ...
    @property
    def region(self) -> str: ...
    @property
    def bucket(self) -> str: ...
    @property
    def secure(self) -> bool: ...
    @property
    def public_endpoint(self) -> str: ...
    @property
    def access_key_file(self) -> Path | None: ...
    @property
    def secret_key_file(self) -> Path | None: ...
    @property
    def proxy(self) -> str: ...
    @property
    def proxy_credentials_file(self) -> Path | None: ...
    @property
    def options(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class Opening:
    """What a store is opened with besides its location.

    Attributes:
        settings: timeouts, retries and numbers of threads are those of all stores.
        waiter: ends all waiting when the service stops.
        writes: False: nothing is written but what a caller asks for, so no trial requests.
    """

    settings: "RsmSettings"
    waiter: Waiter
    writes: bool


class StoreKind(Protocol):
    """A kind of store. A class that derives from this gets what most stores need.

    Attributes:
        needs: the fields of a location that must be set.
        options: the names in the location's options, with what each one is.
        has_urls: presign returns URLs, so that RSM_DIRECT_READS makes sense.
        takes_proxy: the store is reached through the location's proxy, if it has one.
    """

    needs: ClassVar[Sequence[str]] = ("bucket",)
    options: ClassVar[Mapping[str, str]] = {}
    has_urls: ClassVar[bool] = False
    takes_proxy: ClassVar[bool] = False

    def place(self, entry: LocationEntry) -> tuple[str, ...]:
        """Return what distinguishes the location from all others of this kind of store."""
        return (entry.endpoint.lower(), entry.bucket, entry.prefix)

    def describe(self, entry: LocationEntry) -> str:
        """Describe the place for people, without credentials."""
        at = f" at {entry.endpoint}" if entry.endpoint else ""
        return f"prefix {entry.prefix!r} of bucket {entry.bucket!r}{at}"

    def open(self, entry: LocationEntry, opening: Opening) -> StorageBackend:
        """Open the store, without a request to it.

        Raises:
            SystemExit: a file that the entry names cannot be used, or a package is missing.
        """
        ...

    def probe(self, location: Location, store: StorageBackend) -> StoreProbe:
        """Return what finds out the capabilities of a store of this kind; `store` is as opened."""
        del store
        return StoreProbe(location)

    def rules(self, location: Location, store: StorageBackend, where: str) -> Sequence[StoreRule]:
        """Read what the store does by itself with the objects; `where` begins each text."""
        del location, store, where
        return ()


def known_kinds() -> list[str]:
    """Return the names of all kinds, those of installed packages too."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


@cache
def store_kind(name: str) -> StoreKind:
    """Return the kind of store that a backend names.

    Raises:
        ValueError: no package has it, or the package cannot be loaded.
    """
    built_in = [EntryPoint(name, _BUILT_IN[name], GROUP)] if name in _BUILT_IN else []
    points = built_in or list(entry_points(group=GROUP, name=name))
    if not points:
        raise ValueError(
            f"there is no backend {name!r}, only {', '.join(known_kinds())}; install the package "
            f"that has it (an entry point of {GROUP}) beside sediment"
        )
    try:
        return cast(StoreKind, points[0].load()())
    except (ImportError, AttributeError) as e:
        raise ValueError(f"backend {name!r} ({points[0].value}) cannot be loaded: {e}") from e


def require_known(name: str) -> str:
    """Return the name of a backend; raise ValueError if there is none."""
    store_kind(name)
    return name


def entry_problem(name: str, entry: LocationEntry) -> str | None:
    """Return what is wrong with the fields of a location for its backend; None if nothing is."""
    kind = store_kind(name)
    missing = [field for field in kind.needs if not getattr(entry, field)]
    if missing:
        return f'backend = "{name}" also needs {", ".join(missing)}'
    if unknown := sorted(entry.options.keys() - kind.options.keys()):
        known = ", ".join(kind.options) or "none"
        return f'backend = "{name}" has no option {", ".join(unknown)}; it has {known}'
    if entry.proxy and not kind.takes_proxy:
        return f'backend = "{name}" uses no proxy'
    return None


def proxy_credentials(entry: LocationEntry, opening: Opening) -> str | None:
    """Read user:password of a location's proxy; None if it wants none.

    Raises:
        SystemExit: the file cannot be used.
    """
    if entry.proxy_credentials_file is None:
        return None
    try:
        return read_secret(entry.proxy_credentials_file)
    except SecretFileError as e:
        what = f"RSM_LOCATIONS_FILE: {opening.settings.locations_file}: location {entry.id}"
        raise SystemExit(f"{what}, proxy_credentials_file: {e}") from None
