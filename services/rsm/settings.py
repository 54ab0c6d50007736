"""Define the settings of RSM."""

import re
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    model_validator,
)
from pydantic_settings import SettingsConfigDict

from services.common.bounded_file import require_one_line
from services.common.settings import DividedSettings, whole_of
from services.rsm.backends.kinds import require_known, store_kind
from services.rsm.verification import VerifyReads

_MIB = 1024 * 1024

CredentialsSource = Literal["environment", "files", "aws", "web-identity", "assume-role"]

_CREDENTIALS: dict[CredentialsSource, tuple[str, ...]] = {
    "environment": ("access_key", "secret_key"),
    "files": ("access_key_file", "secret_key_file"),
    "aws": (),
    "web-identity": ("sts_endpoint", "web_identity_token_file"),
    "assume-role": ("sts_endpoint", "access_key_file", "secret_key_file"),
}
"""The settings that each source of credentials needs."""

_MORE_CREDENTIALS: dict[CredentialsSource, tuple[str, ...]] = {
    "files": ("session_token_file",),
    "web-identity": ("role_arn",),
    "assume-role": ("role_arn",),
}
"""The settings that a source of credentials may have besides."""

_OF_CREDENTIALS = sorted({*chain(*_CREDENTIALS.values(), *_MORE_CREDENTIALS.values())})

UPLOAD_THREADS = 4
"""Concurrent uploads of parts: enough for a gigabit network at 8 MiB a part and 50 ms a request."""

MAX_LOCATION_ID = 65535
MAX_PREFIX_LENGTH = 512
MAX_BUCKET_LENGTH = 63

# No name between two slashes is dots alone: a file system takes it for another directory, and so do
# some stores and proxies.
PREFIX_PATTERN = r"^(\.*[A-Za-z0-9_-][A-Za-z0-9._-]*/)*$"
ENDPOINT_PATTERN = r"^[^/\s]*$"
PUBLIC_ENDPOINT_PATTERN = r"^(https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?)?$"

# Labels that begin and end with a letter or digit, as S3 and the SDK require.
BUCKET_PATTERN = r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*)?$"
_IP_ADDRESS = re.compile(r"[0-9]+(\.[0-9]+){3}")


def _possible_bucket(name: str) -> str:
    """Check a bucket's name against the rules that need look-ahead in a pattern."""
    if name and not 3 <= len(name) <= MAX_BUCKET_LENGTH:
        raise ValueError(f"a bucket's name must have 3 to {MAX_BUCKET_LENGTH} characters")
    if _IP_ADDRESS.fullmatch(name):
        raise ValueError("a bucket's name must not be an IP address")
    return name


BucketName = Annotated[str, Field(pattern=BUCKET_PATTERN), AfterValidator(_possible_bucket)]
"""Name of an S3 bucket; empty for none."""


def _on_one_line(secret: SecretStr) -> SecretStr:
    require_one_line(secret.get_secret_value())
    return secret


Secret = Annotated[SecretStr, AfterValidator(_on_one_line)]
"""Text that no message has."""


class RsmSettings(DividedSettings):
    """Settings of RSM, RSM_*. Values that depend on the environment are required, by backend."""

    DIVIDED = (
        *DividedSettings.DIVIDED,
        "copy_threads",
        "upload_rate_bytes_per_s",
        "fetch_rate_bytes_per_s",
        "delete_rate_keys_per_s",
    )

    # An error would print the whole input, including the secret key.
    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="RSM_", hide_input_in_errors=True
    )

    backend: Annotated[str, AfterValidator(require_known)]
    """Kind of object store: s3, gcs, azure, filesystem, or what an installed package adds
    (docs/run/stores.md)."""
    location_id: int = Field(default=1, ge=1, le=MAX_LOCATION_ID)
    """Number of this store in the custom metadata of segments. Never reuse it for another store."""
    locations_file: Path | None = None
    """TOML file that lists other locations, and properties of the current one."""
    deployment_id: str = Field(default="", pattern=r"^[A-Za-z0-9._-]*$", max_length=128)
    """Name of this deployment. RSM refuses a store that another deployment has marked."""
    marker_required: bool = False
    """Refuse a store that has no marker instead of marking it. Set it once the store is in use, so
    that RSM also detects an unmounted volume at start."""
    prefix: str = Field(default="", pattern=PREFIX_PATTERN, max_length=MAX_PREFIX_LENGTH)
    """Prefix of every object key: empty, or folders ending with a slash."""
    directory: Path | None = None
    """filesystem, hdfs: directory that holds the objects; must exist."""
    endpoint: str = Field(default="", pattern=ENDPOINT_PATTERN)
    """s3: address of the store, HOST:PORT."""
    region: str = ""
    """s3: region of the store."""
    credentials: CredentialsSource = "environment"
    """s3: source of the keys. environment: RSM_ACCESS_KEY and RSM_SECRET_KEY. files: RSM_*_FILE,
    read again when they change. aws: as the AWS SDKs find them, in AWS_* variables, in
    ~/.aws/credentials, or from the role of the pod, task or instance. web-identity: from an STS,
    for the token in a file. assume-role: from an STS, for the keys in files."""
    access_key: Secret = SecretStr("")
    """s3, environment: access key."""
    secret_key: Secret = SecretStr("")
    """s3, environment: secret key."""
    access_key_file: Path | None = None
    """s3, files and assume-role: file with the access key."""
    secret_key_file: Path | None = None
    """s3, files and assume-role: file with the secret key."""
    session_token_file: Path | None = None
    """s3, files: file with the session token of temporary keys, if they have one."""
    sts_endpoint: str = Field(default="", pattern=r"^(https?://[^/\s?#@]+(/[^\s?#@]*)?)?$")
    """s3, web-identity and assume-role: URL of the STS, for example
    https://sts.eu-west-1.amazonaws.com."""
    role_arn: str = ""
    """s3, web-identity and assume-role: role to assume, if the STS needs one."""
    web_identity_token_file: Path | None = None
    """s3, web-identity: file with the token, read for each use."""
    bucket: BucketName = ""
    """s3: name of the bucket, which must exist."""
    secure: bool = True
    """s3: connect with TLS."""
    connect_timeout_ms: int = Field(default=5_000, ge=1)
    """s3: timeout for opening a connection, and for sending each 256 KiB of a body, ms."""
    read_timeout_ms: int = Field(default=30_000, ge=1)
    """s3: how long to wait for bytes from the store, ms."""
    retries: int = Field(default=3, ge=0, le=10)
    """s3: how often to retry a request that fails or whose body breaks off; each MiB of a body
    starts the count again."""
    # S3 requires 5 MiB and accepts 10,000 parts; the largest segment, 2 GiB, has 410 of that size.
    part_size_bytes: int = Field(default=8 * _MIB, ge=5 * _MIB, le=512 * _MIB)
    """Size of an uploaded part, bytes; a smaller object is uploaded whole."""
    copy_threads: int = Field(default=8, ge=1, le=512)
    """Maximum concurrent copies of one process, with TLS of one identity. Twice as many may wait;
    further copies are refused and may be retried."""
    verify_reads: VerifyReads = "always"
    """Which reads of logs to verify against the digests of the copy: off, sampled (every 16th) or
    always. The chunks of 1 MiB around a range are read whole, and no byte is served before its
    chunk has matched; indexes are always verified. A verified read fails with DATA_LOSS if its
    manifest is missing or wrong. The manifest is read once for each segment while it is cached."""
    verify_writes: bool = False
    """Before a copy is acknowledged, ask the store for the size of each of its three objects: for
    stores that acknowledge what they do not keep. Three requests a copy."""
    upload_rate_bytes_per_s: int = Field(default=0, ge=0)
    """Maximum rate of all copies of one process together, bytes/s; 0: no limit. Like Kafka's
    remote.log.manager.copy.max.bytes.per.second, but per process, not per broker."""
    fetch_rate_bytes_per_s: int = Field(default=0, ge=0)
    """Maximum rate of all fetches of one process together, bytes/s; 0: no limit. Like Kafka's
    remote.log.manager.fetch.max.bytes.per.second, but per process, not per broker."""
    delete_rate_keys_per_s: int = Field(default=3_500, ge=1)
    """Maximum objects that one process deletes per second (S3 accepts 3,500 writes per prefix). RSM
    lowers the rate, down to a 64th, while the store is overloaded."""
    direct_reads: bool = False
    """s3: hand out URLs with which clients (rsm.config.direct.reads of the Kafka plugin) read logs
    from the store themselves. Read docs/run/security.md before."""
    direct_read_expiry_s: int = Field(default=300, ge=10, le=3_600)
    """s3: how long such a URL is valid, s; less if RSM's own credentials expire earlier."""
    public_store_endpoint: str = Field(default="", pattern=PUBLIC_ENDPOINT_PATTERN, max_length=300)
    """s3: URL of the store as those clients reach it, for example https://s3.example.org:9000.
    Empty: RSM_ENDPOINT serves them too."""

    @property
    def part_buffers(self) -> int:
        """Return how many part buffers there are: one to fill for each copy, one for each upload.

        So no slow caller stops the others; times part_size_bytes this bounds the memory of copies.
        """
        return whole_of(self.copy_threads, self.share_percent) + UPLOAD_THREADS

    @model_validator(mode="after")
    def _has_what_the_backend_needs(self) -> Self:
        kind = store_kind(self.backend)
        missing = [name for name in kind.needs if not getattr(self, name)]
        if missing:
            raise ValueError(f"RSM_BACKEND={self.backend} also needs {_variables(missing)}")
        return self

    @model_validator(mode="after")
    def _direct_reads_need_a_store_with_urls(self) -> Self:
        if self.direct_reads and not store_kind(self.backend).has_urls:
            raise ValueError(
                "RSM_DIRECT_READS=true needs RSM_BACKEND=s3 or another store that signs URLs, "
                f"not {self.backend}"
            )
        return self

    @model_validator(mode="after")
    def _has_what_the_credentials_need(self) -> Self:
        if self.backend != "s3":
            return self
        source, needed = self.credentials, _CREDENTIALS[self.credentials]
        missing = [name for name in needed if not getattr(self, name)]
        if missing:
            raise ValueError(f"RSM_CREDENTIALS={source} also needs {_variables(missing)}")
        allowed = {*needed, *_MORE_CREDENTIALS.get(source, ())}
        others = [name for name in _OF_CREDENTIALS if getattr(self, name) and name not in allowed]
        if others:
            raise ValueError(f"RSM_CREDENTIALS={source} does not use {_variables(others)}")
        return self


def _variables(names: list[str]) -> str:
    return ", ".join(f"RSM_{name.upper()}" for name in names)
