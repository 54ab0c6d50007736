"""Test when S3 credentials are renewed, and that no error has one."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from minio.credentials.credentials import Credentials
from minio.credentials.providers import Provider

from services.api.errors import RetriableRemoteStorageError
from services.common.bounded_file import MAX_SECRET_BYTES, SecretFileError, read_secret
from services.rsm.active_copies import Waiter
from services.rsm.backends.s3 import S3Storage
from services.rsm.backends.s3_credentials import (
    RECHECK_S,
    REFRESH_AHEAD_S,
    RETRY_PAUSE_S,
    SETTLED_S,
    FileCredentials,
    SdkCredentials,
    StoreCredentials,
)
from services.rsm.backends.s3_http import S3Target, http_pool
from services.rsm.factory import build_backend
from services.rsm.settings import RsmSettings

OLD, NEW = Credentials("old-key", "old-secret"), Credentials("new-key", "new-secret")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def seconds(self) -> float:
        return self.now_s

    def time(self) -> datetime:
        return datetime.fromtimestamp(self.now_s, UTC)


@pytest.fixture
def clock() -> Clock:
    return Clock()


class KeyFiles:
    """The two files; each write makes another file in its place, as rotations do."""

    def __init__(self, directory: Path) -> None:
        self.paths = directory / "access-key", directory / "secret-key"
        self.write(OLD)

    def write(self, credentials: Credentials) -> None:
        self.write_one(0, credentials.access_key)
        self.write_one(1, credentials.secret_key)

    def write_one(self, number: int, text: str) -> None:
        making = self.paths[number].with_suffix(".new")
        making.write_text(f"{text}\n")
        making.rename(self.paths[number])


@pytest.fixture
def files(tmp_path: Path) -> KeyFiles:
    return KeyFiles(tmp_path)


@pytest.fixture
def held(files: KeyFiles, clock: Clock) -> FileCredentials:
    return FileCredentials(*files.paths, now=clock.seconds)


def test_changed_files_are_read_once_they_stay_the_same(
    files: KeyFiles, held: FileCredentials, clock: Clock
) -> None:
    files.write_one(0, NEW.access_key)
    assert held.retrieve() == OLD
    clock.now_s += SETTLED_S / 2
    files.write_one(1, NEW.secret_key)
    assert held.retrieve() == OLD
    clock.now_s += SETTLED_S / 2
    assert held.retrieve() == OLD
    clock.now_s += SETTLED_S / 2
    assert held.retrieve() == NEW


def test_refused_keys_are_read_again_at_once(files: KeyFiles, held: FileCredentials) -> None:
    assert not held.renew(OLD)
    files.write(NEW)
    assert held.renew(OLD)
    assert held.retrieve() == NEW
    assert held.renew(OLD)
    assert not held.renew(NEW)


def test_files_that_become_unusable_change_nothing(
    files: KeyFiles, held: FileCredentials, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    files.paths[1].unlink()
    held.retrieve()
    clock.now_s += 2 * SETTLED_S
    assert held.retrieve() == OLD
    assert not held.renew(OLD)
    assert f"{files.paths[1]}: cannot be read: No such file" in caplog.text
    assert "old-secret" not in caplog.text
    files.write(NEW)
    held.retrieve()
    clock.now_s += SETTLED_S
    assert held.retrieve() == NEW


def test_a_session_token_is_read_too(files: KeyFiles, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("temporary\n")
    assert FileCredentials(*files.paths, token).retrieve().session_token == "temporary"


class Source(Provider):
    """Gives out numbered keys that live for a while, or fails."""

    def __init__(self, clock: Clock, life_s: float | None) -> None:
        self.clock = clock
        self.life_s = life_s
        self.given = 0
        self.error: Exception | None = None

    def retrieve(self) -> Credentials:
        if self.error is not None:
            raise self.error
        self.given += 1
        life_s, now = self.life_s, self.clock.time()
        expiration = None if life_s is None else now + timedelta(seconds=life_s)
        return Credentials(f"key-{self.given}", "secret", None, expiration)


def from_source(source: Source) -> tuple[SdkCredentials, Callable[[], str]]:
    held = SdkCredentials("the STS", lambda: source, source.clock.time)
    return held, lambda: held.retrieve().access_key


def test_how_long_keys_are_valid_is_known_of_temporary_ones_only(
    clock: Clock, held: FileCredentials
) -> None:
    temporary, _ = from_source(Source(clock, 3_600.0))
    assert temporary.left_s() == 3_600.0
    clock.now_s += 600
    assert temporary.left_s() == 3_000.0
    lasting, _ = from_source(Source(clock, None))
    assert (lasting.left_s(), held.left_s()) == (inf, inf)


class ShortLived(StoreCredentials):
    """Keys that are valid for so many seconds more, whenever they are asked for."""

    def __init__(self, left_s: float) -> None:
        self._left_s = left_s

    def retrieve(self) -> Credentials:
        return Credentials("key", "secret", "session-token")

    def left_s(self) -> float:
        return self._left_s

    def renew(self, refused: Credentials) -> bool:
        return False


def store_with(credentials: StoreCredentials) -> S3Storage:
    target = S3Target("127.0.0.1:1", False, "eu", "bucket", credentials, sign_payload=True)
    return S3Storage(http_pool(1, 1_000, 1_000, 0, Waiter()), target)


def test_a_url_does_not_outlive_the_keys_that_sign_it() -> None:
    signed = store_with(ShortLived(12.9)).presign("key", 300)
    assert signed is not None
    query = parse_qs(urlsplit(signed.url).query)
    assert (signed.valid_s, query["X-Amz-Expires"]) == (12, ["12"])
    assert query["X-Amz-Security-Token"] == ["session-token"]
    assert "Signature" not in repr(signed)


def test_keys_that_expire_now_sign_nothing() -> None:
    with pytest.raises(RetriableRemoteStorageError, match="expire in less than a second"):
        store_with(ShortLived(0.9)).presign("key", 300)


@pytest.mark.parametrize(("life_s", "ahead_s"), [(3_600.0, REFRESH_AHEAD_S), (60.0, 15.0)])
def test_temporary_keys_are_renewed_before_they_expire(
    clock: Clock, life_s: float, ahead_s: float
) -> None:
    _, key = from_source(Source(clock, life_s))
    assert key() == "key-1"
    clock.now_s += life_s - ahead_s - 1
    assert key() == "key-1"
    clock.now_s += 1
    assert key() == "key-2"


def test_keys_without_an_end_are_obtained_again_now_and_then(clock: Clock) -> None:
    _, key = from_source(Source(clock, None))
    assert key() == "key-1"
    clock.now_s += RECHECK_S
    assert key() == "key-2"


def test_a_failed_renewal_is_an_error_only_when_the_keys_have_expired(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(clock, 3_600.0)
    _, key = from_source(source)
    assert key() == "key-1"
    token_in_url = "https://sts/?WebIdentityToken=hush failed with HTTP status code 403"
    source.error = ValueError(token_in_url)
    clock.now_s += 3_500
    assert key() == "key-1"
    clock.now_s += 101
    with pytest.raises(RetriableRemoteStorageError, match=r"from the STS \(status 403\)") as caught:
        key()
    assert caught.value.__suppress_context__
    assert "hush" not in caplog.text + str(caught.value)
    source.error = None
    assert key() == "key-2"


def test_refused_keys_are_renewed_but_not_over_and_over(clock: Clock) -> None:
    source = Source(clock, 3_600.0)
    held, key = from_source(source)
    first = held.retrieve()
    assert not held.renew(first)
    clock.now_s += RETRY_PAUSE_S
    assert held.renew(first)
    assert held.renew(first)
    assert (key(), source.given) == ("key-2", 2)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        (b" \n", "is empty"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"k" * (MAX_SECRET_BYTES + 1), "cannot be read: has over 65536 bytes"),
    ],
)
def test_a_file_without_a_secret_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SecretFileError, match=f"^{path}: {said}") as caught:
        read_secret(path)
    assert caught.value.__cause__ is None


def test_a_secret_keeps_its_spaces(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(" a b \r\n")
    assert read_secret(tmp_path / "key") == " a b "


def test_a_missing_key_file_ends_the_start_with_its_name(tmp_path: Path) -> None:
    missing = tmp_path / "access-key"
    settings = RsmSettings.model_validate(
        {
            "backend": "s3",
            "endpoint": "store:9000",
            "region": "eu-west-1",
            "bucket": "tier",
            "credentials": "files",
            "access_key_file": missing,
            "secret_key_file": missing,
        }
    )
    with pytest.raises(SystemExit, match=f"{missing}: cannot be read: No such file"):
        build_backend(settings)
