"""Read what a store has, and provide a segment copied to one, to be read by a proxy and damaged."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_backend, build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, copied
from tests.harness.eventually import eventually
from tests.harness.http_proxy import HttpProxy


def keys_in(store: StorageBackend, prefix: str) -> Iterator[str]:
    """Yield the keys of the objects below a prefix, in order."""
    return (stored.key for stored in store.list_objects(prefix))


Proxy = TypeVar("Proxy", bound=HttpProxy)


@dataclass
class StoredCopy(Generic[Proxy]):
    """A segment in a store, its files, and the proxy through which the readers see the store."""

    settings: RsmSettings
    proxy: Proxy
    backend: StorageBackend
    files: Files
    segment: RemoteLogSegmentMetadata
    cleanup: ExitStack

    def reader(self, **changes: object) -> ObjectRemoteStorageManager:
        """Build an RSM behind the proxy, with the settings changed."""
        return self._manager({"endpoint": self.proxy.address, **changes})

    def copied(self, files: Files) -> RemoteLogSegmentMetadata:
        """Copy another segment without the proxy."""
        return copied(self._manager({}), files)

    def key(self, kind: str) -> str:
        """Return the key of the only object whose name ends with `kind`."""
        (key,) = (k for k in keys_in(self.backend, self.settings.prefix) if k.endswith(f".{kind}"))
        return key

    def content(self, key: str) -> bytes:
        stored = self.backend.describe(key)
        assert stored is not None
        return b"".join(self.backend.fetch(key, 0, stored.size_bytes - 1))

    def change(self, kind: str, position: int) -> None:
        """Change one byte of the only object of the kind."""
        content = bytearray(self.content(self.key(kind)))
        content[position] ^= 1
        self.backend.put(self.key(kind), bytes(content))

    def assert_requests(self, **counts: int) -> None:
        """Wait, because the client may finish a request a moment before the proxy counts it."""
        eventually(lambda: self.proxy.counts() == Counter(counts))

    def _manager(self, changes: dict[str, object]) -> ObjectRemoteStorageManager:
        manager = build_manager(self.settings.model_copy(update=changes))
        return self.cleanup.enter_context(closing(manager))


@contextmanager
def stored_copy(settings: RsmSettings, proxy: Proxy, files: Files) -> Iterator[StoredCopy[Proxy]]:
    with ExitStack() as cleanup, closing(build_manager(settings)) as direct:
        segment = copied(direct, files)
        backend = build_backend(settings)
        yield StoredCopy(settings, proxy, backend, files, segment, cleanup)
