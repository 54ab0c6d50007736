"""The settings with which a Kafka broker keeps its tier in Sediment."""

from pathlib import Path

_PACKAGE = "io.sediment.kafka"


def plugin_settings(jar: Path, rsm_address: str, rlmm_address: str) -> dict[str, str]:
    """Broker properties by Kafka's names, for services at `host:port`.

    Which topics are tiered is each topic's own setting, remote.storage.enable.
    """
    storage, metadata = "remote.log.storage.manager", "remote.log.metadata.manager"
    return {
        "remote.log.storage.system.enable": "true",
        f"{storage}.class.name": f"{_PACKAGE}.SedimentRemoteStorageManager",
        f"{storage}.class.path": str(jar),
        "rsm.config.endpoint": rsm_address,
        f"{metadata}.class.name": f"{_PACKAGE}.SedimentRemoteLogMetadataManager",
        f"{metadata}.class.path": str(jar),
        "rlmm.config.endpoint": rlmm_address,
    }
