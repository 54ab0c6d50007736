"""An S3 store as a client sees it."""

from dataclasses import dataclass, field
from typing import Protocol

import urllib3
from minio import Minio

_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class S3Endpoint:
    """Where an S3 store is and the keys to it; `endpoint` is HOST:PORT."""

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    region: str = "us-east-1"
    secure: bool = False

    def client(self, timeout_s: float = _TIMEOUT_S) -> Minio:
        """A client that tries each request once; close its pool by dropping it."""
        return Minio(
            self.endpoint,
            access_key=self.access_key,
            secret_key=self.secret_key,
            region=self.region,
            secure=self.secure,
            http_client=urllib3.PoolManager(
                timeout=urllib3.Timeout(timeout_s), retries=False, maxsize=10
            ),
        )

    def ensure_bucket(self, name: str) -> None:
        """Make a bucket; one that is there and ours is no error."""
        client = self.client()
        if not client.bucket_exists(name):
            client.make_bucket(name)

    def remove_bucket(self, name: str) -> None:
        """Remove a bucket with every object in it."""
        client = self.client()
        for item in client.list_objects(name, recursive=True):
            client.remove_object(name, str(item.object_name))
        client.remove_bucket(name)


class S3Server(Protocol):
    """An S3 store as a process of ours. `endpoint` and `pid` are known once it was started."""

    @property
    def endpoint(self) -> S3Endpoint: ...

    @property
    def pid(self) -> int: ...

    def is_running(self) -> bool: ...

    def start(self) -> None:
        """Start it and wait until it serves."""

    def kill(self) -> None:
        """End it at once; what it acknowledged it keeps. Not running is no error."""
