"""Run the commands of pages, in their order, as they are written, beside `sediment up`.

The pages whose commands need other surroundings have tests of their own: ELSEWHERE.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from demos.stage import link_log_dir
from hatch_build import ROOT
from tests.harness.eventually import eventually
from tests.harness.pages import shown_commands
from tests.harness.running_up import Up, running_up
from tests.harness.sediment_command import sediment
from tests.harness.world import BUNDLED_LOG
from tests.unit.cli.test_metadata_print import SNAPSHOTS, snapshot_file

DOCS = ROOT / "docs"
PAGES: dict[str, dict[str, str]] = {
    "understand/spi-mapping.md": {},
    "run/database.md": {},
    "run/object-locations.md": {},
    "understand/copying.md": {"orders": "mixed-codecs", "payments": "telemetry"},
    "use/kafka-plugin.md": {"orders": "audit"},
    "use/spark.md": {"payments": "profiles"},
    "understand/retention.md": {"orders": "payments"},
    "run/repair.md": {"orders": "orders.eu-west"},
    "use/sidecar.md": {"orders": "telemetry"},
    "run/leave.md": {"clicks": "clicks"},
    "run/status.md": {"orders": "clicks"},
}
"""The topics of the bundled log in the place of the page's, by page."""
ELSEWHERE = {
    "reference/commands.md": "tests/deep/test_command_examples.py",
    "run/come-and-leave.md": "tests/kafka/test_metadata_import.py",
    "run/console.md": "tests/console/test_process.py",
    "run/disasters.md": "tests/deep/test_disaster_page.py",
    "run/kubernetes.md": "tests/cluster/release.py",
    "run/restore.md": "tests/kafka/test_restore.py",
    "run/security.md": "tests/deep/test_security_page_in_full.py",
    "run/stores.md": "tests/stores/test_up_over_store.py",
    "start/production.md": "tests/deep/test_production_page.py",
    "use/clients.md": "tests/deep/test_cli_up.py",
}
BEFORE = {
    "run/repair.md": ["topics delete orders.eu-west --yes"],
    "understand/retention.md": [
        "holds set payments-0 --name s3a://lake/records --reason 'as an export'"
    ],
    "use/spark.md": ["holds set profiles-0 --name /var/lib/tables/records --reason 'as an export'"],
}
"""What has happened when a reader needs the page's commands."""
PARTS = ("--kept", "delete-records", "--mirror")
BOUNDED = {"top": "top --count 1", "top --interval 10 --count 6": "top --interval 1 --count 2"}
"""What would run for ever, or a minute."""
OF_BROKERS = "sediment.local.retention.owner"
"""What names this setting needs a broker: tests/kafka/test_local_retention.py."""
MAY_FIND = {
    "status": {0, 1},
    "doctor": {0, 1},
    "fetch --kept": {1},
    "topics delete-records": {3},
    "copy --mirror": {2},
}
"""No location here has a mirror. The bundled log has blocked segments, no broker has deleted a
segment that is kept, and the holds of a page keep the records that it then deletes.
"""


@pytest.fixture(scope="module")
def up(server_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    log_dir = tmp_path_factory.mktemp("pages") / "log"
    link_log_dir(BUNDLED_LOG, log_dir)
    with running_up(server_directory / "pages", "--log-dir", log_dir) as made:
        made.wait_until_shipped()
        yield made


def test_every_page_with_commands_is_run() -> None:
    shown = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if shown_commands(page)}
    assert shown == PAGES.keys() | ELSEWHERE.keys()
    assert all((ROOT / test).exists() for test in ELSEWHERE.values())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_does_what_it_says(up: Up, page: str, tmp_path: Path) -> None:
    environment = up.environment(tmp_path)
    shown = [line for line in shown_commands(DOCS / page) if OF_BROKERS not in line]
    for line in (*BEFORE.get(page, ()), *shown):
        words = filled(up, BOUNDED.get(line, line), PAGES[page], tmp_path)
        done = sediment(*words, environment=environment)
        name = " ".join((words[0], *(word for word in words if word in PARTS)))
        assert done.returncode in MAY_FIND.get(name, {0}), (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
    if page == "run/leave.md":
        eventually(lambda: not up.lines("segments", "clicks-0"), deadline_ms=120_000)


def filled(up: Up, line: str, topics: dict[str, str], directory: Path) -> list[str]:
    """Return the words of a command with this deployment's topics, addresses and numbers."""
    words = shlex.split(line)
    if ">" in words:
        words = words[: words.index(">")]
    at = up.endpoints
    values = {
        "--rsm": at.rsm,
        "--rlmm": at.rlmm,
        "--rlm": at.rlm,
        "--database-url": at.database_url,
        "--log-dir": str(BUNDLED_LOG),
    }
    values |= {"--report": str(directory / "report.json"), "--offset": "10", "--before": "10"}
    if words[0] == "copy":
        values["--to"] = str(directory)
    for number, word in enumerate(words):
        found = re.fullmatch(r"(TOPIC_ID:)?([\w.]+?)(-\d+)?", word)
        if number and words[number - 1] in values:
            words[number] = values[words[number - 1]]
        elif number and words[number - 1] == "--revision":
            [topic] = up.lines("topics", "show", words[number - 2])
            words[number] = str(topic["revision"])
        elif found and found[2] in topics:
            [topic] = up.lines("topics", "show", topics[found[2]])
            topic_id = f"{topic['topic_id']}:" if found[1] else ""
            words[number] = f"{topic_id}{topics[found[2]]}{found[3] or ''}"
    if "remote_log_snapshot" in words:
        words[-1] = str(snapshot_file(directory, SNAPSHOTS))
    return [word.replace("$today", "3") for word in words]
