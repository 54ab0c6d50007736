"""What the chart makes of `console`: a page that only certificates with a grant may open."""

import tomllib

import pytest

from services.common.client_security import SecurityOptions
from services.common.console_settings import ConsoleSettings
from tests.helm.chart import (
    ChartRefusedError,
    Object,
    Rendered,
    Values,
    changed,
    minimal,
    pod_spec,
    render,
    values_files,
)

pytestmark = pytest.mark.helm

NAME = "sediment-console"
ON = {"console": {"enabled": True}}
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def rendered(*changes: Values) -> Rendered:
    return render(changed(values_files()["cert-manager"], ON, *changes))


def container(found: Rendered) -> Object:
    (only,) = pod_spec(found.one("Deployment", NAME))["containers"]
    made: Object = only
    return made


def environment(found: Rendered) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container(found)["env"]}


def test_without_it_nothing_of_it_is_there() -> None:
    found = render(values_files()["tls"])
    assert not [o for o in found.objects if "console" in o["metadata"]["name"]]


def test_plaintext_is_refused() -> None:
    with pytest.raises(ChartRefusedError, match="without TLS the console serves its own pod only"):
        render(minimal(ON))


def test_its_settings_are_those_that_the_console_takes() -> None:
    found = rendered({"console": {"rlmAddresses": ["broker-0:50051", "broker-1:50051"]}})
    variables = environment(found)
    names = {name for name in variables if name.startswith("CONSOLE_")}
    values = {name.removeprefix("CONSOLE_").lower(): variables[name] for name in names}
    settings = ConsoleSettings.model_validate(values)
    assert settings.has_tls
    assert settings.rlm_addresses == "broker-0:50051,broker-1:50051"
    assert settings.rlmm_address == "sediment-rlmm.tier.svc:50051"
    assert SecurityOptions.from_environment(variables).is_chosen
    assert container(found)["command"] == ["python", "-m", "services.console"]


def test_every_file_that_it_reads_is_mounted() -> None:
    found = rendered()
    mounts = [mount["mountPath"] for mount in container(found)["volumeMounts"]]
    files = [value for name, value in environment(found).items() if name.endswith("_FILE")]
    assert len(files) == 7
    assert all(any(file.startswith(f"{mount}/") for mount in mounts) for file in files)


def test_it_is_certified_as_server_and_client_and_may_read_everything() -> None:
    found = rendered({"console": {"dnsNames": ["console.example.com"]}})
    certificate = found.one("Certificate", f"{NAME}-tls")["spec"]
    assert {"client auth", "server auth"} <= {*certificate["usages"]}
    assert "console.example.com" in certificate["dnsNames"]
    policy = tomllib.loads(found.one("ConfigMap", "sediment-policy")["data"]["policy.toml"])
    (grant,) = (g for g in policy["grant"] if certificate["uris"] == g["identities"])
    assert grant["roles"] == ["auditor"]
    assert grant["topics"] == ["*"]


def test_probes_connect_to_the_port_that_it_serves() -> None:
    made = container(rendered())
    (port,) = made["ports"]
    assert [made[probe]["tcpSocket"]["port"] for probe in PROBES] == [port["name"]] * 3
    assert environment(rendered())["CONSOLE_LISTEN_ADDRESS"].endswith(f":{port['containerPort']}")


def test_only_named_peers_reach_it_and_it_reaches_only_the_services() -> None:
    closed = rendered({"networkPolicy": {"enabled": True}})
    assert closed.one("NetworkPolicy", NAME)["spec"]["ingress"] == []
    peer = {"namespaceSelector": {"matchLabels": {"name": "ingress"}}}
    changes = {"networkPolicy": {"enabled": True, "consoleFrom": [peer]}}
    found = rendered(changes, {"console": {"rlmAddresses": ["broker-0:9191"]}})
    policy = found.one("NetworkPolicy", NAME)["spec"]
    assert policy["ingress"] == [{"ports": [{"port": "https"}], "from": [peer]}]
    ports = [port["port"] for rule in policy["egress"] for port in rule["ports"]]
    assert ports == [53, 53, 50051, 9191]
