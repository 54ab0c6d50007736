"""From settings to a manager."""

from minio.credentials.credentials import Credentials

from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.backends.protocol import StorageBackend
from services.rsm.backends.s3 import S3Storage, http_pool
from services.rsm.backends.s3_requests import S3Target
from services.rsm.location import Location
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from services.rsm.upload import PartBuffers


def build_manager(settings: RsmSettings) -> ObjectRemoteStorageManager:
    """The manager that `settings` describe; asks nothing of the store yet (see check)."""
    location = Location(settings.location_id, build_backend(settings), settings.prefix)
    buffers = PartBuffers(
        settings.part_buffers, settings.part_size_bytes, settings.buffer_timeout_ms
    )
    return ObjectRemoteStorageManager(location, buffers, settings.upload_threads)


def build_backend(settings: RsmSettings) -> StorageBackend:
    """The store of objects that `settings` describe."""
    if settings.directory is not None and settings.backend == "filesystem":
        return FilesystemStorage(settings.directory)
    http = http_pool(
        # One for each thread that may be at the store.
        connections=(
            settings.upload_threads
            + settings.copy_threads
            + settings.stream_threads
            + settings.unary_threads
        ),
        connect_timeout_ms=settings.connect_timeout_ms,
        read_timeout_ms=settings.read_timeout_ms,
        retries=settings.retries,
    )
    return S3Storage(http, s3_target(settings), settings.prefix)


def s3_target(settings: RsmSettings) -> S3Target:
    """The bucket that `settings` name, and how to sign for it."""
    credentials = Credentials(
        settings.access_key.get_secret_value(), settings.secret_key.get_secret_value()
    )
    return S3Target(
        endpoint=settings.endpoint,
        secure=settings.secure,
        region=settings.region,
        bucket=settings.bucket,
        credentials=credentials,
        sign_payload=settings.sign_payload and not settings.secure,
    )
