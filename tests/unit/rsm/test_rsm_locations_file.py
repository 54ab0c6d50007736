"""Test the contents of RSM_LOCATIONS_FILE, and the errors for an unusable one."""

import base64
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.backends.s3 import S3Storage
from services.rsm.factory import build_locations
from services.rsm.locations_file import RegisteredLocation, current_location, registered_locations
from services.rsm.metrics import MeasuredStorage
from services.rsm.settings import RsmSettings

S3: dict[str, Any] = {
    "backend": "s3",
    "endpoint": "store:9000",
    "region": "us-east-1",
    "access_key": "access",
    "secret_key": "hidden-secret",
    "bucket": "segments",
    "prefix": "new/",
    "location_id": 2,
}
OLD = """
[[location]]
id = 1
backend = "s3"
endpoint = "store:9000"
region = "us-east-1"
bucket = "segments"
prefix = "old/"
"""
AIVEN = OLD + 'layout = "aiven"\n'
FILES = """
[[location]]
id = 7
backend = "filesystem"
directory = "/srv/objects"
prefix = ""
"""
KMS = 'sse = "aws:kms"\nsse_kms_key_id = "alias/tier"\nsse_kms_context = {tier = "a"}\n'
CURRENT = OLD.replace("id = 1", "id = 2").replace("old/", "new/")
With = Callable[[str], RsmSettings]


@pytest.fixture
def listing(tmp_path: Path) -> With:
    """Settings of location 2 whose file has this text."""

    def make(text: str) -> RsmSettings:
        file = tmp_path / "locations.toml"
        file.write_text(text)
        return RsmSettings.model_validate({**S3, "locations_file": file})

    return make


def test_without_a_file_there_is_the_current_location_alone() -> None:
    locations = build_locations(RsmSettings.model_validate(S3))
    assert [location.location_id for location in locations.all] == [2]


def test_an_empty_file_lists_nothing(listing: With) -> None:
    assert [each.id for each in registered_locations(listing(""))] == [2]


def test_locations_of_any_backend_are_listed(listing: With) -> None:
    locations = build_locations(listing(OLD + FILES))
    assert [(each.location_id, each.prefix) for each in locations.all] == [
        (2, "new/"),
        (1, "old/"),
        (7, ""),
    ]
    measured = [location.backend for location in locations.all]
    kinds = [type(each.backend) for each in measured if isinstance(each, MeasuredStorage)]
    assert kinds == [S3Storage, S3Storage, FilesystemStorage]


def test_the_current_location_is_the_place_of_the_settings_with_the_properties_of_its_entry(
    listing: With,
) -> None:
    settings = listing(f'{OLD}{CURRENT}secure = false\nstorage_class = "GLACIER_IR"\n{KMS}')
    assert [each.id for each in registered_locations(settings)] == [1, 2]
    current = current_location(settings)
    assert (current.secure, current.storage_class) == (True, "GLACIER_IR")
    assert [each.location_id for each in build_locations(settings).all] == [2, 1]


def headers_of(entry: str) -> dict[str, str]:
    location = RegisteredLocation.model_validate(tomllib.loads(entry)["location"][0])
    return dict(location.write_headers())


def test_the_properties_become_headers_of_s3() -> None:
    assert headers_of(OLD) == {}
    assert headers_of(f'{OLD}storage_class = "STANDARD_IA"\nsse = "AES256"') == {
        "x-amz-storage-class": "STANDARD_IA",
        "x-amz-server-side-encryption": "AES256",
    }
    assert headers_of(OLD + KMS) == {
        "x-amz-server-side-encryption": "aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id": "alias/tier",
        "x-amz-server-side-encryption-context": base64.b64encode(b'{"tier":"a"}').decode(),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OLD + OLD, "id 1 is given to two locations"),
        (
            OLD + OLD.replace("id = 1", "id = 3"),
            "locations 1 and 3 are the same place, prefix 'old/' of bucket 'segments' at",
        ),
        (CURRENT.replace("id = 2", "id = 3"), "locations 2 and 3 are the same place"),
        (CURRENT.replace("new/", "other/"), "location 2 is prefix 'other/'"),
        (OLD.replace('prefix = "old/"\n', ""), "location entry 1, prefix: is required"),
        (OLD + 'prefixx = "old/"', "location entry 1, prefixx: unknown key"),
        (OLD + '[[locations]]\nid = 5\nbackend = "s3"', "locations: unknown key"),
        (OLD.replace("id = 1", "id = 0"), "location entry 1, id: "),
        (OLD.replace("id = 1", "id = 65536"), "location entry 1, id: "),
        (OLD.replace("id = 1", 'id = "1"'), "location entry 1, id: "),
        (OLD.replace('"s3"', '"tape"'), "location entry 1, backend: "),
        (OLD.replace("old/", "old"), "location entry 1, prefix: "),
        (OLD.replace("old/", "old/../new/"), "location entry 1, prefix: "),
        (OLD.replace('bucket = "segments"', ""), 'backend = "s3" also needs bucket'),
        (FILES.replace("directory", "# directory"), 'backend = "filesystem" also needs directory'),
        (OLD + 'secret_key_file = "x"', "access_key_file and secret_key_file go together"),
        (OLD + "id =", "not TOML"),
        ("location = 1", "location: "),
        (OLD + 'layout = "tar"', "location entry 1, layout: "),
        (OLD + 'read_only = "yes"', "location entry 1, read_only: "),
        (OLD + 'suffixes = {log = ".x"}', 'key_pairs go with layout = "aiven"'),
        (OLD + 'key_pairs = {a = "b.pem"}', 'key_pairs go with layout = "aiven"'),
        (AIVEN + 'suffixes = {logs = ".x"}', "suffixes may have log, indexes, manifest"),
        (AIVEN + 'suffixes = {log = "/x"}', "location entry 1, suffixes"),
        (AIVEN + 'key_template = "{topic}"', "key_template must have {segment_id}"),
        (AIVEN + 'key_template = "{segment_id"', "key_template expected '}'"),
        (
            AIVEN + 'key_template = "{segment_id.int}"',
            "key_template has {segment_id.int}; may have",
        ),
        (AIVEN + 'key_template = "{segment_id!r}"', "key_template has {segment_id}; may have"),
        (AIVEN + 'key_template = "../{segment_id}"', "key_template must make a relative path"),
        (AIVEN + 'key_template = "/{segment_id}"', "key_template must make a relative path"),
        (CURRENT + "read_only = true", "location 2 is the current one, which is written"),
        (CURRENT + 'layout = "aiven"', "location 2 is the current one, which is written"),
        (OLD + 'storage_class = "DEEP_ARCHIVE"', 'storage_class = "DEEP_ARCHIVE": its objects'),
        (OLD + 'storage_class = "cold one"', "location entry 1, storage_class: "),
        (OLD + 'sse = "aes"', "location entry 1, sse: "),
        (OLD + 'sse_kms_key_id = "x"', 'sse_kms_key_id and sse_kms_context go with sse = "aws:'),
        (OLD + KMS.replace('"a"', "1"), "location entry 1, sse_kms_context tier: "),
        (OLD + KMS.replace('"alias/tier"', '"a b"'), "location entry 1, sse_kms_key_id: "),
        (OLD + "mirror = 9", "mirror of location 1: location 9 is not registered"),
        (OLD + "mirror = 1", "location 1 must be another one, that is not written"),
        (OLD + "mirror = 2", "location 2 must be another one, that is not written"),
        (OLD + "mirror = 7" + FILES, "location 7 has prefix '', must be 'old/'"),
        (
            OLD + "mirror = 7\n" + FILES.replace('""', '"old/"') + 'layout = "aiven"',
            'location 7 must have layout = "sediment"',
        ),
        (
            OLD + "mirror = 7\n" + CURRENT + "mirror = 7\n" + FILES.replace('""', '"old/"'),
            "mirror of location 2: location 7 has prefix 'old/'",
        ),
        (OLD + 'topics = ["a["]', "location entry 1, topics entry 1: not a regular expression"),
        (OLD + 'topics = [""]', "location entry 1, topics entry 1: "),
        (OLD + 'topics = "a"', "location entry 1, topics: "),
        (AIVEN + 'topics = ["a"]', 'topics go with layout = "sediment"'),
        (OLD + 'read_only = true\ntopics = ["a"]', "topics go with"),
        (OLD + 'proxy = "squid:3128"', "location entry 1, proxy: "),
        (OLD + 'proxy_credentials_file = "x"', "proxy_credentials_file goes with proxy"),
        (FILES + 'proxy = "http://squid:3128"', 'backend = "filesystem" uses no proxy'),
        (
            OLD + 'proxy = "http://squid:3128"\nproxy_credentials_file = "/no/such"',
            "location 1, proxy_credentials_file: ",
        ),
    ],
)
def test_a_mistake_is_named_with_the_file(listing: With, text: str, said: str) -> None:
    settings = listing(text)
    with pytest.raises(SystemExit) as refused:
        build_locations(settings)
    message = str(refused.value)
    assert said in message
    for line in message.splitlines():
        assert line.startswith(f"RSM_LOCATIONS_FILE: {settings.locations_file}: ")
    assert "hidden-secret" not in message


@pytest.mark.parametrize(
    ("extra", "is_read_only", "is_foreign"),
    [
        ("", False, False),
        ("read_only = true", True, False),
        ('layout = "aiven"', True, True),
        ('layout = "local-tiered-storage"', True, True),
        ('layout = "aiven"\nread_only = false', False, True),
    ],
)
def test_only_own_writable_locations_are_searched(
    listing: With, extra: str, is_read_only: bool, is_foreign: bool
) -> None:
    locations = build_locations(listing(OLD + extra))
    registered = locations.numbered(1)
    assert registered is not None
    assert (registered.read_only, registered.layout is not None) == (is_read_only, is_foreign)
    assert (registered in locations.all) == (not is_read_only and not is_foreign)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "no-such-file"
    settings = RsmSettings.model_validate({**S3, "locations_file": missing})
    with pytest.raises(SystemExit, match=rf"^RSM_LOCATIONS_FILE: {missing}: No such file"):
        build_locations(settings)


@pytest.mark.parametrize(("content", "said"), [(None, "cannot be read"), (" \n", "is empty")])
def test_a_key_file_that_cannot_be_used_is_named(
    listing: With, tmp_path: Path, content: str | None, said: str
) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_text(content)
    files = f'access_key_file = "{key}"\nsecret_key_file = "{key}"\n'
    with pytest.raises(SystemExit, match=f"^files of the access key, .*: {key}: {said}"):
        build_locations(listing(OLD + files))


def test_bucket_beside_a_directory_needs_its_own_credentials(tmp_path: Path) -> None:
    file = tmp_path / "locations.toml"
    file.write_text(OLD)
    settings = RsmSettings(
        backend="filesystem", directory=tmp_path, location_id=2, locations_file=file
    )
    with pytest.raises(SystemExit, match="location 1 needs access_key_file and secret_key_file"):
        build_locations(settings)
