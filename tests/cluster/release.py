"""Install the chart in a cluster with the commands of docs/run/kubernetes.md."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from services.local.stack import BUCKET, DATABASE, LOGIN
from services.local.trial import POSTGRES_PORT
from tests.cluster.cluster import Cluster
from tests.cluster.guide import blocks, filled_in
from tests.cluster.stores import NAMESPACE, Stores
from tests.helm.chart import CHART, changed

RELEASE = "sediment"
TIER = "tier"
"""The namespace of the guide."""

TRIAL = "trial"
"""The namespace of the guide's trial."""

SECURE = "secure"
"""The namespace of a trial with TLS."""

BROKERS = "kafka"
"""The namespace of the brokers, in the guide too."""

STOCK_BROKERS = "Stock brokers: RLM"
"""The heading of the guide about brokers without the plugin."""

RSM = f"sediment-rsm.{TIER}.svc:50051"
RLMM = f"sediment-rlmm.{TIER}.svc:50051"


@dataclass
class Release:
    """A release, and the directory in which the commands of the guide run for it.

    Attributes:
        changes: what its values have besides those of the guide.
    """

    cluster: Cluster
    directory: Path
    changes: list[dict[str, Any]] = field(default_factory=list)

    def shell(self, text: str) -> str:
        """Run commands of the guide, and return what they print."""
        return self.cluster.run(["bash", "-euxc", text], self.directory)

    def write_values(self) -> None:
        """Write values.yaml: the guide's, for a store without TLS, with the changes."""
        (text,) = [text for text in blocks("Install", "yaml") if "objectStore:" in text]
        plain = {"objectStore": {"secure": False}}
        values = changed(yaml.safe_load(text), plain, *self.changes)
        (self.directory / "values.yaml").write_text(yaml.safe_dump(values))

    def upgrade(self, change: dict[str, Any]) -> None:
        """Change values besides, and upgrade with the command of the guide."""
        self.changes.append(change)
        self.write_values()
        (command,) = blocks("Upgrade", "sh")
        self.shell(command)

    def sediment(self, *arguments: str) -> str:
        """Run a command of the image in a pod of RLMM, and return what it prints."""
        into = ["exec", "deployment/sediment-rlmm", "--", "sediment", "--plaintext"]
        return self.cluster.kubectl("--namespace", TIER, *into, *arguments)


def prepare(release: Release, stores: Stores) -> None:
    """Create the namespace and its secrets as the guide says before the installation."""
    (release.directory / "helm").symlink_to(CHART)
    files = {
        "password.txt": stores.password,
        "access-key.txt": stores.keys.access_key,
        "secret-key.txt": stores.keys.secret_key,
    }
    for name, text in files.items():
        (release.directory / name).write_text(text)
    url = f"{LOGIN}@postgres.{NAMESPACE}.svc:{POSTGRES_PORT}/{DATABASE}"
    _, create = blocks("Before", "sh")
    release.shell(filled_in(create, {"USER@HOST:5432/NAME": url}))
    assert BUCKET in "".join(blocks("Install", "yaml"))


def install(release: Release) -> str:
    """Install with the guide's command, and return what Helm prints."""
    release.write_values()
    command = blocks("Install", "sh")[0]
    return release.shell(command)
