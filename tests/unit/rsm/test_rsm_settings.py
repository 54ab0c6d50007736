"""Test RSM's settings: errors name the missing or wrong one, and secrets stay secret."""

import pytest
from pydantic import SecretStr, ValidationError

from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.backends.s3 import S3Storage
from services.rsm.factory import build_backend
from services.rsm.settings import UPLOAD_THREADS, RsmSettings

S3 = {
    "backend": "s3",
    "endpoint": "store:9000",
    "region": "eu-west-1",
    "access_key": "access",
    "secret_key": "hush",
    "bucket": "tier",
}


@pytest.mark.parametrize("name", ["endpoint", "region", "bucket"])
def test_missing_s3_setting_is_named(name: str) -> None:
    given = {key: value for key, value in S3.items() if key != name}
    with pytest.raises(ValidationError, match=f"RSM_BACKEND=s3 also needs RSM_{name.upper()}"):
        RsmSettings.model_validate(given)


WITHOUT_KEYS = {key: value for key, value in S3.items() if not key.endswith("_key")}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"access_key": "a"}, "RSM_CREDENTIALS=environment also needs RSM_SECRET_KEY"),
        ({}, "RSM_CREDENTIALS=environment also needs RSM_ACCESS_KEY, RSM_SECRET_KEY"),
        (
            {"credentials": "files", "access_key_file": "a"},
            "RSM_CREDENTIALS=files also needs RSM_SECRET_KEY_FILE",
        ),
        (
            {"credentials": "aws", "secret_key": "hush"},
            "RSM_CREDENTIALS=aws does not use RSM_SECRET_KEY",
        ),
        (
            {"access_key": "a", "secret_key": "hush", "secret_key_file": "s"},
            "RSM_CREDENTIALS=environment does not use RSM_SECRET_KEY_FILE",
        ),
        (
            {"credentials": "web-identity", "sts_endpoint": "https://sts:9000"},
            "RSM_CREDENTIALS=web-identity also needs RSM_WEB_IDENTITY_TOKEN_FILE",
        ),
        (
            {"credentials": "assume-role", "access_key_file": "a", "secret_key_file": "s"},
            "RSM_CREDENTIALS=assume-role also needs RSM_STS_ENDPOINT",
        ),
        ({"credentials": "aws", "sts_endpoint": "sts:9000"}, "sts_endpoint"),
        ({"credentials": "vault"}, "credentials"),
    ],
)
def test_each_credentials_source_names_missing_and_unused_settings(
    given: dict[str, str], said: str
) -> None:
    with pytest.raises(ValidationError, match=said) as caught:
        RsmSettings.model_validate({**WITHOUT_KEYS, **given})
    assert "hush" not in str(caught.value)


def test_the_file_system_needs_a_directory() -> None:
    with pytest.raises(ValidationError, match="RSM_DIRECTORY"):
        RsmSettings.model_validate({"backend": "filesystem"})


def test_a_backend_must_be_chosen() -> None:
    with pytest.raises(ValidationError, match="backend"):
        RsmSettings.model_validate({})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endpoint", "http://store:9000"),
        ("bucket", "Not_A_Bucket"),
        ("bucket", "a..b"),
        ("bucket", "a.-b"),
        ("bucket", "a-.b"),
        ("bucket", "-ab"),
        ("bucket", "ab"),
        ("bucket", "a" * 64),
        ("bucket", "192.168.5.4"),
        ("prefix", "no-slash"),
        ("prefix", "/rooted/"),
        ("prefix", "til~de/"),
        ("prefix", "../"),
        ("prefix", "./"),
        ("prefix", "a/../../b/"),
        ("part_size_bytes", 5 * 1024 * 1024 - 1),
        ("location_id", 0),
        ("location_id", 65_536),
    ],
)
def test_a_value_that_cannot_be_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        RsmSettings.model_validate({**S3, name: value})


@pytest.mark.parametrize("name", ["abc", "a--b.c.1", "1.2.3", "a" * 63])
def test_a_bucket_may_have_dots_and_hyphens_within(name: str) -> None:
    assert RsmSettings.model_validate({**S3, "bucket": name}).bucket == name


def test_an_error_does_not_show_the_secret_key() -> None:
    with pytest.raises(ValidationError) as caught:
        RsmSettings.model_validate({**S3, "bucket": ""})
    assert "hush" not in str(caught.value)


def test_settings_do_not_show_the_secret_key() -> None:
    settings = RsmSettings.model_validate(S3)
    assert settings.secret_key == SecretStr("hush")
    assert "hush" not in repr(settings)


def test_the_payload_is_signed_over_plain_http_and_not_over_tls() -> None:
    for secure in (True, False):
        backend = build_backend(RsmSettings.model_validate({**S3, "secure": secure}))
        assert isinstance(backend, S3Storage)
        assert backend.target.sign_payload is not secure


def test_part_buffers_are_one_for_each_copy_and_each_upload_thread() -> None:
    settings = RsmSettings.model_validate({**S3, "copy_threads": 3})
    assert settings.part_buffers == 3 + UPLOAD_THREADS


def test_each_backend_is_built_without_asking_the_store() -> None:
    files = RsmSettings.model_validate({"backend": "filesystem", "directory": "nowhere"})
    assert isinstance(build_backend(files), FilesystemStorage)
    assert isinstance(build_backend(RsmSettings.model_validate(S3)), S3Storage)
