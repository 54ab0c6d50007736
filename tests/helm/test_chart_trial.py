"""What the chart makes of `trial: true`: a release that brings its own database and store."""

import pytest

from services.local.stack import BUCKET, DATABASE, LOGIN
from services.local.trial import POSTGRES_PORT, STORE_PORT
from tests.cluster.guide import blocks
from tests.helm.chart import Rendered, pod_spec, render

pytestmark = pytest.mark.helm

NAME = "sediment-trial"
TRIAL = {"trial": True}


@pytest.fixture(scope="module")
def rendered() -> Rendered:
    return render(TRIAL)


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
