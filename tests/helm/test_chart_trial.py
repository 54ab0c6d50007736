"""What the chart makes of `trial: true`: a release that brings its own database and store."""

from typing import Any

import pytest
import yaml

from services.local.stack import BUCKET, DATABASE, LOGIN
from services.local.trial import POSTGRES_PORT, STORE_PORT
from tests.cluster.guide import blocks
from tests.helm.chart import ChartRefusedError, Rendered, lint, minimal, pod_spec, render

pytestmark = pytest.mark.helm

NAME = "sediment-trial"
TRIAL = {"trial": True}


@pytest.fixture(scope="module")
def rendered() -> Rendered:
    return render(TRIAL)


def test_nothing_else_has_to_be_given() -> None:
    assert lint(TRIAL) == []


def test_the_services_use_the_servers_of_the_trial(rendered: Rendered) -> None:
    settings = rendered.one("ConfigMap", "sediment-rsm")["data"]
    host = f"{NAME}.tier.svc"
    assert settings["RSM_ENDPOINT"] == f"{host}:{STORE_PORT}"
    assert settings["RSM_BUCKET"] == BUCKET
    assert settings["RSM_SECURE"] == "false"
    container = pod_spec(rendered.one("Deployment", "sediment-rlmm"))["containers"][0]
    (url,) = [entry for entry in container["env"] if entry["name"] == "RLMM_DATABASE_URL"]
    assert url["valueFrom"]["secretKeyRef"] == {"name": NAME, "key": "url"}
    secret = rendered.one("Secret", NAME)
    assert secret["stringData"]["url"] == f"postgresql://{LOGIN}@{host}:{POSTGRES_PORT}/{DATABASE}"
    keys = ["access-key", "password", "secret-key"]
    assert sorted(secret["data"]) == keys
    assert len({secret["data"][key] for key in keys}) == 3


def test_passwords_are_new_each_time_unless_there_is_a_seed() -> None:
    """Render as `helm template` does, which sees no secret of the cluster."""

    def passwords(seed: str) -> dict[str, str]:
        made: dict[str, str] = render({**TRIAL, "trialSeed": seed}).one("Secret", NAME)["data"]
        return made

    assert passwords("") != passwords("")
    assert passwords("mine") == passwords("mine") != passwords("other")
    assert len(set(passwords("mine").values())) == 3


def test_the_service_leads_to_the_ports_of_the_pod(rendered: Rendered) -> None:
    (container,) = pod_spec(rendered.one("Deployment", NAME))["containers"]
    listening = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
    assert listening == {"postgres": POSTGRES_PORT, "store": STORE_PORT}
    service = rendered.one("Service", NAME)["spec"]
    assert {entry["targetPort"]: entry["port"] for entry in service["ports"]} == listening
    labels = rendered.one("Deployment", NAME)["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()


def test_every_pod_has_the_image_that_the_guide_builds(rendered: Rendered) -> None:
    workloads = rendered.of_kind("Deployment", "CronJob")
    (image,) = {pod_spec(workload)["containers"][0]["image"] for workload in workloads}
    assert image in blocks("To try it", "sh")[0].split()


def test_the_migration_is_the_pods_own(rendered: Rendered) -> None:
    assert rendered.of_kind("Job") == []


def test_the_notes_warn(rendered: Rendered) -> None:
    assert "WARNING: this is a trial, not for production." in rendered.notes


def test_without_it_nothing_of_a_trial_is_there() -> None:
    text = yaml.safe_dump(render(minimal()).objects)
    assert "trial" not in text


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("database.existingSecret", {"database": {"existingSecret": "mine"}}),
        ("database.ownerSecret", {"database": {"ownerSecret": "mine"}}),
        ("objectStore.bucket", {"objectStore": {"bucket": "mine"}}),
        ("objectStore.endpoint", {"objectStore": {"endpoint": "mine:9000"}}),
        ("objectStore.existingSecret", {"objectStore": {"existingSecret": "mine"}}),
    ],
)
def test_a_database_or_a_store_of_ones_own_is_refused(path: str, values: dict[str, Any]) -> None:
    with pytest.raises(ChartRefusedError, match=f"trial is true and {path} is mine"):
        render({**TRIAL, **values})
