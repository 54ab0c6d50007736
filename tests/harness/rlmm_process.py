"""Run an RLMM, as a process or in this one, and the command `sediment` beside it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from services.common.client_security import PLAINTEXT
from services.local.stack import ServiceProcess, rlmm_settings
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.servicer import RemoteLogMetadataManagerServicer
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from tests.harness.grpc_server import served
from tests.harness.patience import PATIENT
from tests.harness.sediment_command import Completed, sediment
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc


@dataclass(frozen=True)
class RlmmProcess:
    """The address of an RLMM, and a client of it."""

    address: str
    client: RemoteLogMetadataManagerClient

    def sediment(self, *arguments: str) -> Completed:
        """Run a command against this RLMM, to its end."""
        return sediment(*arguments, environment={"SEDIMENT_RLMM": self.address})

    def answers(self, *arguments: str) -> list[dict[str, Any]]:
        """Run a command that must succeed; return its JSON output, document by document."""
        done = self.sediment(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def refusal(self, *arguments: str) -> str:
        """Run a command that must refuse its arguments; return its one line of error."""
        done = self.sediment(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        (line,) = done.stderr.splitlines()
        return line


@contextmanager
def running_rlmm(database_url: str, directory: Path) -> Iterator[RlmmProcess]:
    """Run RLMM over a migrated database and stop it at the end."""
    service = ServiceProcess("rlmm", rlmm_settings(database_url), directory)
    service.start()
    try:
        with open_channel(service.address, PLAINTEXT) as channel:
            client = RemoteLogMetadataManagerClient(channel, service.address)
            yield RlmmProcess(service.address, client)
    finally:
        service.kill()


@contextmanager
def serving_rlmm(database_url: str) -> Iterator[RlmmProcess]:
    """Serve RLMM over real gRPC in this process, which starts in no time."""
    engine = create_database_engine(database_url, PATIENT)

    def add_to(server: grpc.Server) -> None:
        servicer = RemoteLogMetadataManagerServicer(SqlRemoteLogMetadataManager(engine))
        pb_grpc.add_RemoteLogMetadataManagerServicer_to_server(servicer, server)

    with served(add_to, "tieredstorage.v1.RemoteLogMetadataManager") as (channel, address):
        yield RlmmProcess(address, RemoteLogMetadataManagerClient(channel, address))
    engine.dispose()
