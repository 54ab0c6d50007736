"""Make a broker's properties of docs/run/strimzi.md as Strimzi does."""

import re
from typing import Any

import yaml

from hatch_build import ROOT

PAGE = (ROOT / "docs" / "run" / "strimzi.md").read_text()
INSTALL = (ROOT / "docs" / "use" / "kafka-plugin.md").read_text()
KAFKAS_MANAGER = (
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
)
DIRECTORIES = (
    "/mnt/sediment-plugin/",
    "/mnt/sediment-tls/",
    "/opt/sediment/",
    "/etc/sediment/tls/",
)


def resource(kind: str) -> dict[str, Any]:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (found,) = (made for made in map(yaml.safe_load, blocks) if made["kind"] == kind)
    return dict(found)


def properties_by_strimzi(kafka: dict[str, Any]) -> dict[str, str]:
    """What Strimzi writes about tiering, in its order, and then the user's own; the last counts."""
    manager = kafka["tieredStorage"]["remoteStorageManager"]
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.metadata.manager.impl.prefix": "rlmm.config.",
        "remote.log.metadata.manager.class.name": KAFKAS_MANAGER,
        "remote.log.metadata.manager.listener.name": "REPLICATION-9091",
        "rlmm.config.remote.log.metadata.common.client.security.protocol": "SSL",
        "remote.log.storage.manager.class.name": manager["className"],
        "remote.log.storage.manager.class.path": manager["classPath"],
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        **{f"rsm.config.{name}": value for name, value in manager["config"].items()},
        **kafka["config"],
    }


def properties_to_install() -> dict[str, str]:
    (block,) = re.findall(r"^```properties\n(.*?)^```$", INSTALL, re.DOTALL | re.MULTILINE)
    return dict(line.split("=", 1) for line in block.splitlines())


def without_directory(value: str) -> str:
    for directory in DIRECTORIES:
        value = value.removeprefix(directory)
    return value


def test_the_cluster_of_the_page_has_the_properties_that_brokers_are_tested_with() -> None:
    made = properties_by_strimzi(resource("Kafka")["spec"]["kafka"])
    expected = properties_to_install()
    ours = {name: without_directory(value) for name, value in made.items() if name in expected}
    assert ours == {name: without_directory(value) for name, value in expected.items()}


def test_plugin_accepts_properties_added_by_strimzi() -> None:
    made = properties_by_strimzi(resource("Kafka")["spec"]["kafka"])
    unknown = made.keys() - properties_to_install().keys()
    of_plugin = {name for name in unknown if name.startswith(("rsm.config.", "rlmm.config."))}
    assert all(name.startswith("rlmm.config.remote.log.metadata.") for name in of_plugin)


def test_each_file_of_the_properties_is_in_a_volume_that_is_mounted() -> None:
    kafka = resource("Kafka")["spec"]["kafka"]
    template = kafka["template"]
    mounts = {m["name"]: m["mountPath"] for m in template["kafkaContainer"]["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in template["pod"]["volumes"]}
    assert mounts.keys() == volumes.keys()
    # Strimzi refuses a mount anywhere else.
    assert all(path.startswith("/mnt/") for path in mounts.values())
    values = properties_by_strimzi(kafka).values()
    files = [value for value in values if value.startswith("/")]
    assert len(files) == 8
    assert all(any(file.startswith(f"{path}/") for path in mounts.values()) for file in files)
    secret = volumes["sediment-tls"]["secret"]["secretName"]
    assert secret == resource("Certificate")["spec"]["secretName"]
