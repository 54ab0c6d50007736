"""The whole stack, with the real services."""

import json
import subprocess
import sys
from pathlib import Path

import grpc
import psycopg
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from services.api.ids import uuid_to_text
from services.cli.connections import address_of
from services.cli.output import CommandError
from services.local.data_directory import (
    DataDirectoryError,
    StackEndpoints,
    locked,
    read_credentials,
    running_stack,
)
from services.local.seaweedfs import S3Endpoint
from services.local.stack import EmbeddedStack
from tests.harness.eventually import eventually
from tests.harness.processes import runs

pytestmark = pytest.mark.deep

RUNS_A_STACK = """
import json, signal, sys
from dataclasses import asdict
from pathlib import Path
from services.local.stack import EmbeddedStack

with EmbeddedStack(Path(sys.argv[1])) as stack:
    print(json.dumps(asdict(stack.endpoints)), flush=True)
    signal.pause()
"""


@pytest.fixture
def data_dir(server_directory: Path) -> Path:
    return server_directory / "stack"


@pytest.fixture
def killed(data_dir: Path) -> StackEndpoints:
    """The endpoints of a stack whose parent was killed with SIGKILL."""
    command = [sys.executable, "-c", RUNS_A_STACK, str(data_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        endpoints = StackEndpoints(**json.loads(parent.stdout.readline()))
        parent.kill()
    return endpoints


def is_serving(health_address: str) -> bool:
    with grpc.insecure_channel(health_address) as channel:
        answer = HealthStub(channel).Check(HealthCheckRequest(), timeout=10)
        return bool(answer.status == HealthCheckResponse.SERVING)


def s3_of(endpoints: StackEndpoints) -> S3Endpoint:
    found = read_credentials(endpoints)
    return S3Endpoint(endpoints.s3_endpoint, found.s3_access_key, found.s3_secret_key)


def test_a_stack_serves_is_found_by_others_and_ends_with_all_its_processes(data_dir: Path) -> None:
    with EmbeddedStack(data_dir, fresh=True) as stack:
        endpoints = stack.endpoints
        assert is_serving(endpoints.rsm_health)
        assert is_serving(endpoints.rlmm_health)
        assert is_serving(endpoints.rlm_health)
        assert s3_of(endpoints).client().bucket_exists(endpoints.s3_bucket)
        assert running_stack(data_dir) == endpoints
        with pytest.raises(DataDirectoryError, match="another stack is running"):
            EmbeddedStack(data_dir).__enter__()
    assert running_stack(data_dir) is None
    assert not [name for name, pid in endpoints.pids.items() if runs(pid)]
    with locked(data_dir, fresh=True):  # it knows all that a stack makes
        assert sorted(entry.name for entry in data_dir.iterdir()) == ["lock", "sediment-data"]


def test_processes_of_a_killed_stack_end_and_the_next_has_its_data(
    killed: StackEndpoints, data_dir: Path
) -> None:
    assert running_stack(data_dir) is None
    eventually(lambda: not [pid for pid in killed.pids.values() if runs(pid)])
    before = read_credentials(killed)
    with EmbeddedStack(data_dir) as stack:
        endpoints = stack.endpoints
        assert s3_of(endpoints).secret_key == before.s3_secret_key
        url = read_credentials(endpoints).database_url.replace("+psycopg", "")
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT deployment_id FROM deployment").fetchone()
        assert row is not None
        marker = s3_of(endpoints).client().get_object(endpoints.s3_bucket, ".sediment").data
        assert json.loads(marker)["deployment_id"] == uuid_to_text(row[0])


@pytest.mark.long
def test_a_stack_without_rlm_says_so(data_dir: Path) -> None:
    with EmbeddedStack(data_dir, fresh=True, with_rlm=False) as stack:
        assert sorted(stack.services) == ["rlmm", "rsm"]
        assert (stack.endpoints.rlm, stack.endpoints.rlm_health) == ("", "")
        assert address_of("rsm", data_dir) == stack.endpoints.rsm
        with pytest.raises(CommandError, match=r"serves no rlm; .*, or pass --rlm HOST:PORT"):
            address_of("rlm", data_dir)
