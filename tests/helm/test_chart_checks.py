"""What the chart makes of `checks`: the CronJobs of `sediment reconcile` and `sediment scrub`."""

from typing import Any

import pytest

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
