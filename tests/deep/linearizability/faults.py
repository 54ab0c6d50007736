"""What goes wrong while clients work; each fault leaves everything running again."""

from collections.abc import Callable, Mapping
from functools import partial

from tests.deep.linearizability.deployment import Deployment
from tests.deep.linearizability.postgres_proxy import AFTER_COMMIT, BEFORE_COMMIT, COMMIT
from tests.harness.eventually import eventually
from tests.harness.faults import Cut
from tests.harness.processes import kill_and_restart, run_until_killed

COMMITS_CUT_AT_ONCE = 5
_BUSY_MACHINE_MS = 120_000

Fault = Callable[[Deployment], None]


def _kill_postgres(deployment: Deployment) -> None:
    deployment.postgres.kill()
    deployment.postgres.start()


def _kill_rlmm(number: int, deployment: Deployment) -> None:
    kill_and_restart(deployment.rlmms[number])


def _cut_client_connections(deployment: Deployment) -> None:
    for proxy in deployment.client_proxies:
        proxy.cut_connections()


def _cut_commits(cut: Cut, deployment: Deployment) -> None:
    """Cut connections at their COMMIT, as clients work, so that there are some."""
    proxy = deployment.postgres_proxy
    cuts_before = proxy.cuts
    proxy.faults.add(cut, operation=COMMIT, times=COMMITS_CUT_AT_ONCE)
    eventually(lambda: proxy.cuts - cuts_before == COMMITS_CUT_AT_ONCE, _BUSY_MACHINE_MS)


def _die_at(failpoint: str, number: int, deployment: Deployment) -> None:
    """Let an RLMM die at a failpoint, which it passes as clients work."""
    rlmm = deployment.rlmms[number]
    rlmm.kill()
    run_until_killed(rlmm, failpoint, 10, _BUSY_MACHINE_MS)
    rlmm.start()


FAULTS: Mapping[str, Fault] = {
    "cut_after_commit": partial(_cut_commits, AFTER_COMMIT),
    "kill_postgres": _kill_postgres,
    "cut_client_connections": _cut_client_connections,
    "kill_one_rlmm": partial(_kill_rlmm, 0),
    "cut_before_commit": partial(_cut_commits, BEFORE_COMMIT),
    "cut_database_connections": lambda deployment: deployment.postgres_proxy.cut_connections(),
    "kill_other_rlmm": partial(_kill_rlmm, 1),
    "die_after_commit": partial(_die_at, "rlmm.after_commit", 1),
    "die_before_commit": partial(_die_at, "rlmm.before_commit", 0),
}
