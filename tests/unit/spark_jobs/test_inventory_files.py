"""Test how the manifest of an inventory is read."""

import json

import pytest

from spark_jobs.checks.inventory_files import NoInventoryError, read_manifest

KEY = "inventories/orders/daily/data/0.csv.gz"
DOCUMENT = {
    "sourceBucket": "orders",
    "creationTimestamp": "1764118800000",
    "fileFormat": "CSV",
    "fileSchema": "Bucket, Key, IsLatest, Size, LastModifiedDate, ETag",
    "files": [{"key": KEY}],
}


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("s3a://kept/inventories/orders/daily/2026/manifest.json", f"s3a://kept/{KEY}"),
        ("/copies/daily/2026/manifest.json", "/copies/daily/data/0.csv.gz"),
        ("2026/manifest.json", "./data/0.csv.gz"),
    ],
)
def test_files_are_in_the_bucket_of_the_manifest_or_beside_a_copy(path: str, file: str) -> None:
    found = read_manifest(json.dumps(DOCUMENT), path)
    assert (found.paths, found.made_ms) == ((file,), 1_764_118_800_000)
    assert found.columns == ("bucket", "key", "is_latest", "size", "last_modified_date", "etag")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "not a manifest of S3"),
        ("[]", "not a manifest of S3"),
        (json.dumps({**DOCUMENT, "creationTimestamp": "today"}), "not a manifest of S3"),
        (
            json.dumps({name: DOCUMENT[name] for name in DOCUMENT if name != "creationTimestamp"}),
            "KeyError: 'creationTimestamp'",
        ),
        (json.dumps({**DOCUMENT, "files": []}), "names no files"),
        (json.dumps({**DOCUMENT, "fileFormat": "XML"}), "its files are XML"),
        (json.dumps({**DOCUMENT, "sourceBucket": 7}), "names no files"),
    ],
)
def test_what_is_no_manifest_is_named(text: str, said: str) -> None:
    with pytest.raises(NoInventoryError, match=said):
        read_manifest(text, "/a/b/manifest.json")
