"""What the chart makes of `checks`: the CronJobs of `sediment reconcile` and `sediment scrub`."""

from typing import Any

import pytest

from spark_jobs.checks.options import Inventory, parse_reconcile, parse_scrub
from tests.helm.chart import (
    ChartRefusedError,
    Object,
    Rendered,
    changed,
    minimal,
    pod_spec,
    render,
    values_files,
)
from tests.helm.test_chart_objects import Record
from tests.helm.test_chart_tls import mounted_at
from tests.helm.test_chart_tokens import granted

pytestmark = pytest.mark.helm

FILES = values_files()
MEMORY = {"resources": {"limits": {"memory": "3Gi"}}}
BOTH = {"reconcile": {"enabled": True}, "scrub": {"enabled": True}}


def container(found: Rendered, name: str) -> Object:
    (only,) = pod_spec(found.one("CronJob", name))["containers"]
    given: Object = only
    return given


def options(found: Rendered, name: str) -> list[str]:
    """Return the arguments but the addresses."""
    given = container(found, name)["args"]
    return [text for text in given if not text.startswith(("--rsm=", "--rlmm="))]


def test_checks_are_off_unless_they_are_chosen() -> None:
    names = {o["metadata"]["name"] for o in render(minimal()).objects}
    assert names.isdisjoint({"sediment-reconcile", "sediment-scrub", "sediment-checks"})


def test_a_check_is_the_command_with_its_own_defaults() -> None:
    found = render(minimal({"checks": BOTH}))
    assert container(found, "sediment-reconcile")["command"] == ["sediment", "reconcile"]
    assert options(found, "sediment-reconcile") == ["--grace-ms=86400000", "--output=json"]
    assert container(found, "sediment-scrub")["command"] == ["sediment", "scrub"]
    assert options(found, "sediment-scrub") == ["--rate=33554432", "--part=1/1", "--output=json"]
    for name in ("sediment-reconcile", "sediment-scrub"):
        spec = pod_spec(found.one("CronJob", name))
        assert spec["serviceAccountName"] == "sediment-checks"
        assert {"name": "SEDIMENT_PLAINTEXT", "value": "true"} in spec["containers"][0]["env"]
        assert container(found, name)["image"].startswith("registry.example.com/sediment:")


def test_what_is_given_is_passed_on() -> None:
    found = render(FILES["full"])
    given = ["--grace-ms=172800000", "--delete", "--location=0", "--location=2", "--output=json"]
    assert options(found, "kafka-tier-reconcile") == given
    assert options(found, "kafka-tier-scrub")[:2] == ["--rate=104857600", "--part=2/4"]
    assert found.one("CronJob", "kafka-tier-scrub")["spec"]["suspend"] is True


def test_checks_on_spark_are_jobs_of_its_image_with_scratch_space() -> None:
    spark = {
        "engine": "spark",
        "master": "local[8]",
        "sparkConf": {"spark.sql.shuffle.partitions": 8},
        **MEMORY,
    }
    image = {"repository": "registry.example.com/sediment-spark"}
    found = render(minimal({"checks": {**BOTH, **spark}, "sparkImage": image}))
    command = ["python", "-m", "spark_jobs.main"]
    of_spark = [
        "--master=local[8]",
        "--driver-memory=1g",
        "--conf=spark.jars.ivy=/tmp/ivy",
        "--conf=spark.sql.shuffle.partitions=8",
    ]
    given = {
        "reconcile": ["--grace-ms=86400000"],
        "scrub": ["--bytes-per-s=33554432", "--part=1/1"],
    }
    for check, own in given.items():
        name = f"sediment-{check}"
        assert container(found, name)["command"] == [*command, check]
        assert options(found, name) == [*of_spark, *own]
        assert container(found, name)["image"].startswith("registry.example.com/sediment-spark:")
        assert container(found, name)["workingDir"] == "/tmp"
        assert {"name": "HOME", "value": "/tmp"} in container(found, name)["env"]
        assert container(found, name)["securityContext"]["readOnlyRootFilesystem"] is True
        assert mounted_at(found.one("CronJob", name))["/tmp"] == {
            "emptyDir": {"sizeLimit": "2Gi"},
            "name": "scratch",
        }
        assert pod_spec(found.one("CronJob", name))["automountServiceAccountToken"] is False


def test_the_options_of_checks_on_spark_are_those_of_its_jobs() -> None:
    spark = {"checks": {"engine": "spark"}}
    found = render(changed(FILES["full"], spark))
    addresses = ["--rsm=rsm:1", "--rlmm=rlmm:1"]
    reconcile = parse_reconcile([*addresses, *options(found, "kafka-tier-reconcile")])
    assert (reconcile.delete, reconcile.grace_ms, reconcile.locations) == (
        True,
        172_800_000,
        (0, 2),
    )
    scrub = parse_scrub([*addresses, *options(found, "kafka-tier-scrub")])
    assert (scrub.bytes_per_s, scrub.part, scrub.parts) == (104_857_600, 2, 4)


INVENTORY: dict[str, Any] = {
    "checks": {
        **BOTH,
        **MEMORY,
        "engine": "spark",
        "sparkDefaultsSecret": "checks-spark-defaults",
        "reconcile": {"enabled": True, "inventory": "s3a://inventories/today.parquet"},
    }
}


def test_reconcile_on_spark_reads_an_inventory_of_the_releases_bucket() -> None:
    found = render(minimal(INVENTORY))
    addresses = ["--rsm=rsm:1", "--rlmm=rlmm:1"]
    parsed = parse_reconcile([*addresses, *options(found, "sediment-reconcile")])
    bucket = found.one("ConfigMap", "sediment-rsm")["data"]["RSM_BUCKET"]
    assert parsed.inventory == Inventory("s3a://inventories/today.parquet", bucket)
    changes = {"inventoryBucket": "archive", "maxInventoryAgeMs": 691_200_000, "locations": [2]}
    other = {"checks": {"reconcile": changes}}
    given = options(render(minimal(INVENTORY, other)), "sediment-reconcile")
    assert {"--bucket=archive", "--location=2", "--max-inventory-age-ms=691200000"} < set(given)


def test_secret_properties_of_spark_are_files_of_the_checks() -> None:
    found = render(minimal(INVENTORY))
    for name in ("sediment-reconcile", "sediment-scrub"):
        secret = mounted_at(found.one("CronJob", name))["/etc/sediment/spark"]["secret"]
        assert secret["secretName"] == "checks-spark-defaults"
        variable = {"name": "SPARK_CONF_DIR", "value": "/etc/sediment/spark"}
        assert variable in container(found, name)["env"]


def test_checks_on_spark_reach_what_their_values_name() -> None:
    conf = {"spark.hadoop.fs.s3a.endpoint": "http://minio.storage.svc:9000"}
    found = render(minimal(INVENTORY, {"checks": {"sparkConf": conf}}))
    for check in ("reconcile", "scrub"):
        assert tcp_ports(found, check) == {53, 443, 9000, 50051}
    without_a_url = render(minimal(INVENTORY, {"checks": {"reconcile": {"inventory": ""}}}))
    assert tcp_ports(without_a_url, "reconcile") == {53, 50051}
    assert tcp_ports(render(minimal(INVENTORY)), "scrub") == {53, 50051}


def tcp_ports(found: Rendered, component: str) -> set[int]:
    """Return the TCP ports that a component may reach."""
    rules = found.one("NetworkPolicy", f"sediment-{component}")["spec"]["egress"]
    return {p["port"] for rule in rules for p in rule["ports"] if p["protocol"] == "TCP"}


def test_checks_on_spark_need_its_image(record_property: Record) -> None:
    values = minimal({"sweeps": {"engine": "local"}, "sparkImage": {"repository": ""}})
    assert render(changed(values, {"checks": BOTH})).objects
    with pytest.raises(ChartRefusedError) as refused:
        render(changed(values, {"checks": {**BOTH, **MEMORY, "engine": "spark"}}))
    sentence = "name the image built from docker/Dockerfile.spark, or set checks.engine to local"
    assert sentence in str(refused.value)
    record_property("refusal", sentence)


@pytest.mark.parametrize(
    ("reconcile", "roles"),
    [({}, ["sweeper", "reader"]), ({"delete": True}, ["sweeper", "reader", "deleter"])],
)
def test_checks_have_a_certificate_and_the_roles_that_they_need(
    reconcile: dict[str, Any], roles: list[str]
) -> None:
    checks = {"reconcile": {"enabled": True, **reconcile}}
    found = render(changed(FILES["cert-manager"], {"checks": checks}))
    (identity,) = found.one("Certificate", "sediment-checks-tls")["spec"]["uris"]
    assert granted(found)[identity] == roles
    secret = mounted_at(found.one("CronJob", "sediment-reconcile"))["/etc/sediment/tls"]["secret"]
    assert secret["secretName"] == "sediment-checks-tls"


def test_checks_with_a_token_see_no_key() -> None:
    found = render(FILES["tokens"])
    mounts = mounted_at(found.one("CronJob", "sediment-reconcile"))
    assert mounts["/etc/sediment/tls"]["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    (source,) = mounts["/etc/sediment/token"]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "sediment"
    assert "--rsm=sediment-rsm.tier.svc:50054" in container(found, "sediment-reconcile")["args"]


@pytest.mark.parametrize(
    ("base", "checks", "sentence"),
    [
        ("minimal", {"scrub": {"part": "0/4"}}, "at '/checks/scrub/part'"),
        ("minimal", {"scrub": {"rate": 5}}, "'rate' not allowed"),
        ("minimal", {"reconcile": {"locations": [-1]}}, "at '/checks/reconcile/locations/0'"),
        ("minimal", {"engine": "auto"}, "at '/checks/engine'"),
        (
            "minimal",
            {"reconcile": {"inventory": "s3a://inventories/today.parquet"}},
            "are for Spark, and checks.engine is local: set it to spark",
        ),
        (
            "minimal",
            {
                **MEMORY,
                "engine": "spark",
                "reconcile": {"inventory": "/work/list.csv", "locations": [0, 1]},
            },
            "checks.reconcile.inventory is of one location, and checks.reconcile.locations has 2",
        ),
        (
            "minimal",
            {**BOTH, "engine": "spark"},
            "checks.resources.limits.memory is 1Gi and checks.driverMemory is 1g: Spark needs",
        ),
        ("tls", BOTH, "tls.existingSecrets.checks is empty: name the secret with tls.crt"),
        (
            "cert-manager",
            {**BOTH, "credentials": "token"},
            "checks.credentials is token, and no port takes tokens: set tls.tokens.enabled",
        ),
        (
            "tokens",
            {"serviceAccount": {"create": False}},
            "checks.credentials is token, and the checks have the service account default",
        ),
    ],
)
def test_checks_that_could_not_work_are_refused(
    base: str, checks: dict[str, Any], sentence: str, record_property: Record
) -> None:
    with pytest.raises(ChartRefusedError) as refused:
        render(changed(FILES[base], {"checks": checks}))
    assert sentence in str(refused.value)
    record_property("refusal", sentence)
