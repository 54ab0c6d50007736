"""The chart, the settings classes and the reference say the same."""

from collections.abc import Iterator

import pytest
import yaml

from services.common.client_security import SecurityOptions
from services.common.console_settings import ConsoleSettings
from services.local.stack import PROCESS_VARIABLES
from spark_jobs.checks.options import Inventory, parse_reconcile, parse_scrub
from tests.helm.chart import (
    BASES,
    CHART,
    Object,
    Values,
    changed,
    minimal,
    pod_spec,
    render,
    values_files,
)
from tools.chart_reference import NOT_OFFERED, SET_BY_THE_CHART, SETTINGS, readme, schema_text

pytestmark = pytest.mark.helm

FILES = values_files()
SERVICES = list(SETTINGS)
_PREFIXES = tuple(f"{service.upper()}_" for service in SERVICES)
_REMEDY = "run `python -m tools.chart_reference`"


@pytest.mark.parametrize("file", FILES)
def test_every_variable_is_a_setting_of_its_service(file: str) -> None:
    rendered = render(FILES[file])
    for workload in rendered.of_kind("Deployment", "DaemonSet"):
        service = workload["metadata"]["labels"]["app.kubernetes.io/component"]
        if service == "console":  # test_the_console_accepts_its_settings_and_mounts_its_files
            continue
        known = {f"{service}_{name}".upper() for name in SETTINGS[service].model_fields}
        config = rendered.one("ConfigMap", workload["metadata"]["name"])["data"]
        variables = [*config, *_variables(workload)]
        assert {name for name in variables if name.startswith(_PREFIXES)} <= known


@pytest.mark.parametrize("service", SERVICES)
def test_chart_sets_exactly_the_declared_settings(service: str) -> None:
    given = {
        "rlm": FILES["full"]["rlm"] | {"settings": {}, "listener": {"enabled": True}},
        "database": {"passwordKey": "password"},
    }
    kind = "DaemonSet" if service == "rlm" else "Deployment"
    name = f"sediment-{service}"
    found = set[str]()
    for tls in ({"plaintext": True}, FILES["cert-manager"]["tls"], FILES["tokens"]["tls"]):
        rendered = render({**minimal(given), "tls": tls})
        found |= {*rendered.one("ConfigMap", name)["data"], *_variables(rendered.one(kind, name))}
    assert found == {f"{service.upper()}_{setting}" for setting in SET_BY_THE_CHART[service]}


def test_the_console_accepts_its_settings_and_mounts_its_files() -> None:
    console = {"enabled": True, "rlmAddresses": ["broker-0:50051", "broker-1:50051"]}
    found = render(changed(FILES["cert-manager"], {"console": console}))
    (container,) = pod_spec(found.one("Deployment", "sediment-console"))["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    own = {n.lower(): value for n, value in variables.items() if n.startswith("CONSOLE_")}
    values = {name.removeprefix("console_"): value for name, value in own.items()}
    settings = ConsoleSettings.model_validate(values)
    assert settings.has_tls
    assert settings.rlm_addresses == "broker-0:50051,broker-1:50051"
    assert settings.rlmm_address == "sediment-rlmm.tier.svc:50051"
    assert SecurityOptions.from_environment(variables).is_chosen
    mounts = tuple(f"{mount['mountPath']}/" for mount in container["volumeMounts"])
    files = [value for name, value in variables.items() if name.endswith("_FILE")]
    assert len(files) == 7
    assert all(file.startswith(mounts) for file in files)


def _options_of_spark(values: Values, name: str) -> list[str]:
    """Return the options of a check on Spark."""
    rendered = render(changed(values, {"checks": {"engine": "spark"}}))
    options: list[str] = pod_spec(rendered.one("CronJob", name))["containers"][0]["args"]
    return options


def test_the_options_of_checks_on_spark_are_those_of_its_jobs() -> None:
    reconcile = parse_reconcile(_options_of_spark(FILES["full"], "kafka-tier-reconcile"))
    assert (reconcile.delete, reconcile.grace_ms) == (True, 172_800_000)
    assert reconcile.locations == (0, 2)
    scrub = parse_scrub(_options_of_spark(FILES["full"], "kafka-tier-scrub"))
    assert (scrub.bytes_per_s, scrub.part, scrub.parts) == (104_857_600, 2, 4)
    parsed = parse_reconcile(_options_of_spark(BASES["inventory"], "sediment-reconcile"))
    bucket = render(BASES["inventory"]).one("ConfigMap", "sediment-rsm")["data"]["RSM_BUCKET"]
    assert parsed.inventory == Inventory("s3a://inventories/today.parquet", bucket)


@pytest.mark.parametrize("service", SERVICES)
def test_settings_not_offered_exist(service: str) -> None:
    fields = {name.upper() for name in SETTINGS[service].model_fields}
    assert NOT_OFFERED[service] | SET_BY_THE_CHART[service] <= fields


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("file", FILES)
def test_the_service_takes_the_settings_that_are_rendered(
    file: str, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = render(FILES[file])
    names = {o["metadata"]["name"]: o for o in rendered.of_kind("Deployment", "DaemonSet")}
    for name in [name for name in names if name.endswith(f"-{service}")]:
        for variable, value in rendered.one("ConfigMap", name)["data"].items():
            monkeypatch.setenv(variable, value)
        for variable in _variables(names[name]):
            monkeypatch.setenv(variable, "from-a-secret")
        SETTINGS[service].from_environment()


def test_the_schema_has_the_bounds_of_the_settings_classes() -> None:
    assert (CHART / "values.schema.json").read_text() == schema_text(), _REMEDY


def test_the_readme_lists_every_value() -> None:
    written = readme()
    assert (CHART / "README.md").read_text() == written, _REMEDY
    for path in _leaves(yaml.safe_load((CHART / "values.yaml").read_text()), ""):
        assert f"| `{path}` |" in written


def _leaves(values: dict[str, object], path: str) -> Iterator[str]:
    for key, value in values.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict) and value:
            yield from _leaves(value, here)
        else:
            yield here


def _variables(workload: Object) -> list[str]:
    """Names of the container's own variables but those of its process."""
    (container,) = pod_spec(workload)["containers"]
    return [
        str(entry["name"]) for entry in container["env"] if entry["name"] not in PROCESS_VARIABLES
    ]
