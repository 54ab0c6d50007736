"""Publish what kube-state-metrics says about a job and the console of a release named `tier`."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from services.local.process import LOOPBACK

NAMESPACE = "tier"
JOB = "tier-maintenance-1"
CONSOLE = "tier-console"
_PART_OF = "label_app_kubernetes_io_part_of"


class ClusterState:
    """What is published; at first the job has not failed, and the console is up.

    Attributes:
        address: of the metrics, HOST:PORT.
        failed_jobs, available_consoles: what a test changes.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.address = ""
        self.failed_jobs = self._gauge("kube_job_failed", job_name=JOB, condition="true")
        self._gauge("kube_job_labels", job_name=JOB, **{_PART_OF: "sediment"}).set(1)
        self.available_consoles = self._gauge(
            "kube_deployment_status_replicas_available", deployment=CONSOLE
        )
        self.available_consoles.set(1)
        labels = {_PART_OF: "sediment", "label_app_kubernetes_io_component": "console"}
        self._gauge("kube_deployment_labels", deployment=CONSOLE, **labels).set(1)

    def _gauge(self, name: str, **labels: str) -> Gauge:
        labels["namespace"] = NAMESPACE
        return Gauge(name, name, labels.keys(), registry=self.registry).labels(**labels)


@contextmanager
def published_state() -> Iterator[ClusterState]:
    """Serve the state of a cluster, as kube-state-metrics does."""
    state = ClusterState()
    server, thread = start_http_server(0, LOOPBACK, registry=state.registry)
    state.address = f"{LOOPBACK}:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
