"""Publish what `make release` built: images, chart and files, signed without keys.

    python -m supply_chain.publish [--dry-run] build/release ghcr.io/OWNER/sediment

Runs docker, helm, cosign and gh, which the workflow of a tag has (.github/workflows/release.yml);
cosign signs with the identity of that run. A dry run prints the commands. The wheel goes to PyPI by
an action of that workflow.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from supply_chain.release import versions

PLATFORMS = "linux/amd64,linux/arm64"


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its name in the registry, its Dockerfile and its bill of materials."""

    name: str
    dockerfile: str
    bill: str


def commands(release: Path, registry: str, work: Path) -> Iterator[list[str]]:
    """Yield the commands that publish a folder of `make release`, in their order."""
    known = versions()
    version, images = known.release, known.package
    plugin = f"sediment-kafka-plugin-{version}"
    yield ["tar", "-xzf", str(release / f"sediment-images-{images}.tar.gz"), "-C", str(work)]
    yield ["cp", str(release / f"{plugin}.jar"), str(work)]
    for image in (
        Image("sediment", "Dockerfile", f"sediment-{images}.sbom.json"),
        Image("sediment-spark", "Dockerfile.spark", f"sediment-spark-{images}.sbom.json"),
        Image("sediment-kafka-plugin", "Dockerfile.plugin", f"{plugin}.sbom.json"),
    ):
        tag = f"{registry}/{image.name}:{version}"
        yield [
            *("docker", "buildx", "build", "--push", "--platform", PLATFORMS, "--tag", tag),
            *("--provenance", "mode=max", "--sbom", "true"),
            *("--file", str(work / "docker" / image.dockerfile), str(work)),
        ]
        yield ["cosign", "sign", "--yes", "--recursive", tag]
        bill = str(release / image.bill)
        yield ["cosign", "attest", "--yes", "--type", "cyclonedx", "--predicate", bill, tag]
    chart = str(release / f"sediment-chart-{version}.tgz")
    yield ["helm", "push", chart, f"oci://{registry}/charts"]
    yield ["cosign", "sign", "--yes", f"{registry}/charts/sediment:{version}"]
    # The sums have the digest of every file: one signature is enough.
    sums, bundle = str(release / "SHA256SUMS"), str(release / "SHA256SUMS.sigstore.json")
    yield ["cosign", "sign-blob", "--yes", "--bundle", bundle, sums]
    files = sorted(str(path) for path in release.iterdir() if path.name != "RELEASE_NOTES.md")
    notes = str(release / "RELEASE_NOTES.md")
    yield [
        *(
            "gh",
            "release",
            "create",
            f"v{version}",
            "--verify-tag",
            "--title",
            f"Sediment {version}",
        ),
        *("--notes-file", notes, *dict.fromkeys([*files, bundle])),
    ]


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="supply_chain.publish", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    parser.add_argument("release", type=Path, help="the folder of `make release`")
    parser.add_argument("registry", help="where images and chart go, such as ghcr.io/OWNER")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as work:
        for command in commands(options.release, options.registry, Path(work)):
            sys.stdout.write(f"{shlex.join(command)}\n")
            sys.stdout.flush()
            if not options.dry_run:
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
