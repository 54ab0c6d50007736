"""What goes wrong while clients work; each leaves everything running again."""

from collections.abc import Callable, Mapping

from services.local.stack import ServiceProcess
from tests.deep.linearizability.deployment import Deployment
from tests.deep.linearizability.postgres_proxy import AFTER_COMMIT, BEFORE_COMMIT, COMMIT
from tests.harness.eventually import eventually
from tests.harness.faults import Cut
from tests.harness.processes import kill_and_restart, run_until_killed

COMMITS_CUT_AT_ONCE = 5
_BUSY_MACHINE_MS = 120_000

Fault = Callable[[Deployment], None]


def kill_postgres(deployment: Deployment) -> None:
    deployment.postgres.kill()
    deployment.postgres.start()


def kill_one_rlmm(deployment: Deployment) -> None:
    kill_and_restart(deployment.rlmms[0])


def kill_other_rlmm(deployment: Deployment) -> None:
    kill_and_restart(deployment.rlmms[1])


def cut_database_connections(deployment: Deployment) -> None:
    deployment.postgres_proxy.cut_connections()


def cut_client_connections(deployment: Deployment) -> None:
    for proxy in deployment.client_proxies:
        proxy.cut_connections()


def cut_before_commit(deployment: Deployment) -> None:
    _cut_commits(deployment, BEFORE_COMMIT)


def cut_after_commit(deployment: Deployment) -> None:
    _cut_commits(deployment, AFTER_COMMIT)


def die_before_commit(deployment: Deployment) -> None:
    _die_at(deployment.rlmms[0], "rlmm.before_commit")


def die_after_commit(deployment: Deployment) -> None:
    _die_at(deployment.rlmms[1], "rlmm.after_commit")


FAULTS: Mapping[str, Fault] = {
    fault.__name__: fault
    for fault in (
        cut_after_commit,
        kill_postgres,
        cut_client_connections,
        kill_one_rlmm,
        cut_before_commit,
        cut_database_connections,
        kill_other_rlmm,
        die_after_commit,
        die_before_commit,
    )
}


def _cut_commits(deployment: Deployment, cut: Cut) -> None:
    """As clients work, so that there are COMMITs to cut."""
    proxy = deployment.postgres_proxy
    cuts_before = proxy.cuts
    proxy.faults.add(cut, operation=COMMIT, times=COMMITS_CUT_AT_ONCE)
    eventually(lambda: proxy.cuts - cuts_before == COMMITS_CUT_AT_ONCE, _BUSY_MACHINE_MS)


def _die_at(rlmm: ServiceProcess, failpoint: str) -> None:
    """As clients work, so that the failpoint is passed."""
    rlmm.kill()
    run_until_killed(rlmm, failpoint, 10, _BUSY_MACHINE_MS)
    rlmm.start()
