"""Test `sediment store probe`, which reports the features of RSM's store by RSM's settings."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from minio.commonconfig import ENABLED, Filter
from minio.lifecycleconfig import Expiration, LifecycleConfig, Rule
from minio.versioningconfig import VersioningConfig

from services.local.seaweedfs import S3Endpoint
from services.local.stack import rsm_settings
from services.rsm.probe import Capability
from tests.harness.faults import Answer
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy
from tests.harness.sediment_command import Completed, sediment


def probe(settings: Mapping[str, str], *arguments: str) -> Completed:
    environment = {"RSM_RETRIES": "0", **settings}
    return sediment("store", "probe", *arguments, environment=environment)


@pytest.fixture
def proxy(s3: S3Endpoint) -> Iterator[HttpProxy]:
    with HttpProxy(s3.endpoint, s3_operation) as running:
        yield running


@pytest.fixture
def settings(s3: S3Endpoint, proxy: HttpProxy, bucket: str) -> dict[str, str]:
    behind = S3Endpoint(proxy.address, s3.access_key, s3.secret_key)
    return rsm_settings(behind, bucket, "tier/", "ours")


def keys(s3: S3Endpoint, bucket: str) -> list[str]:
    return [str(item.object_name) for item in s3.client().list_objects(bucket, recursive=True)]


def test_a_good_store_is_reported_for_scripts_and_for_people(
    s3: S3Endpoint, bucket: str, settings: dict[str, str]
) -> None:
    done = probe(settings, "-o", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["usable"]) == (0, True)
    assert set(report["capabilities"]) == {capability.value for capability in Capability}
    shown = probe(settings)
    assert shown.returncode == 0
    assert all(capability.value in shown.stdout for capability in Capability)
    assert not keys(s3, bucket)


def test_a_store_that_rsm_would_refuse_is_exit_code_1(
    s3: S3Endpoint, bucket: str, settings: dict[str, str], proxy: HttpProxy
) -> None:
    proxy.faults.add(Answer(501), operation="CreateMultipartUpload", times=None)
    done = probe(settings, "-o", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["usable"]) == (1, False)
    assert report["capabilities"]["multipart"]["outcome"] == "missing"
    assert not keys(s3, bucket)


def test_a_bucket_that_keeps_or_deletes_by_itself_is_named(
    s3: S3Endpoint, bucket: str, settings: dict[str, str]
) -> None:
    sound = json.loads(probe(settings, "-o", "json").stdout)["rules"]
    assert sound == [
        {"level": "OK", "text": "no rule deletes objects"},
        {"level": "OK", "text": "versioning is off"},
    ]
    s3.client().set_bucket_versioning(bucket, VersioningConfig(ENABLED))
    expires = Rule(ENABLED, Filter(prefix="tier/"), "old", expiration=Expiration(days=30))
    s3.client().set_bucket_lifecycle(bucket, LifecycleConfig([expires]))
    done = probe(settings)
    assert done.returncode == 1
    assert (
        "critical: the store deletes objects below 'tier/' after 30 days (rule old)" in done.stderr
    )
    assert "warning: deleted segments stay readable and paid for" in done.stderr


def test_in_another_deployments_prefix_nothing_is_probed(
    s3: S3Endpoint, bucket: str, settings: dict[str, str], proxy: HttpProxy, tmp_path: Path
) -> None:
    marker = {"format_version": 1, "deployment_id": "theirs", "location_id": 1}
    file = tmp_path / "marker"
    file.write_text(json.dumps(marker))
    s3.client().fput_object(bucket, "tier/.sediment", str(file))
    done = probe(settings, "-o", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["usable"]) == (1, False)
    assert "'theirs'" in report["problem"]
    assert "'ours'" in report["problem"]
    assert "PutObject" not in proxy.counts()


def test_a_store_that_is_away_is_exit_code_3(settings: dict[str, str], proxy: HttpProxy) -> None:
    proxy.refuse_connections()
    done = probe(settings)
    assert done.returncode == 3
    assert proxy.address in done.stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"RSM_BUCKET": ""}, "RSM_BUCKET"),
        ({"RSM_BUKET": "x"}, "unknown setting: RSM_BUKET"),
        ({"RSM_LOCATIONS_FILE": "no-such-file"}, "RSM_LOCATIONS_FILE: no-such-file: No such file"),
    ],
)
def test_settings_that_cannot_be_used_are_exit_code_2(
    settings: dict[str, str], changes: dict[str, str], said: str
) -> None:
    done = probe({**settings, **changes})
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert settings["RSM_SECRET_KEY"] not in done.stderr
