"""Run the SegmentObjects suite on RSM: over files, over S3 and over gRPC."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from services.api.segment_objects import SegmentObjects
from services.local.seaweedfs import S3Endpoint
from services.rpc.client.storage import SegmentObjectsClient
from services.rsm.factory import build_backend, build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.servicer import add_to_server
from services.rsm.settings import RsmSettings
from tests.contract import wire_cases
from tests.contract.rsm_over_s3 import PART, settings_for
from tests.contract.segment_objects_contract import LOCATION_ID, SegmentObjectsContract, Store
from tests.harness.served import served

pytestmark = pytest.mark.deep


class InProcess(SegmentObjectsContract):
    """Tests RSM in process; subclasses provide `settings`."""

    @pytest.fixture
    def manager(self, settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
        with closing(build_manager(settings)) as manager:
            yield manager

    @pytest.fixture
    def segment_objects(self, manager: ObjectRemoteStorageManager) -> SegmentObjects:
        return manager.objects

    @pytest.fixture
    def own_store(self, settings: RsmSettings) -> Store:
        assert settings.location_id == LOCATION_ID
        return Store(build_backend(settings), settings.prefix)


class OverFiles(InProcess):
    @pytest.fixture
    def settings(self, tmp_path: Path) -> RsmSettings:
        return RsmSettings(
            backend="filesystem", directory=tmp_path, prefix="tier/", part_size_bytes=PART
        )


class TestOverFiles(OverFiles):
    pass


class TestOverS3(InProcess):
    @pytest.fixture
    def settings(self, s3: S3Endpoint) -> RsmSettings:
        return settings_for(s3)


class TestOverGrpc(OverFiles):
    wire_cases = wire_cases.SEGMENT_OBJECTS

    @pytest.fixture
    def segment_objects(self, manager: ObjectRemoteStorageManager) -> Iterator[SegmentObjects]:
        def add(server: grpc.Server) -> None:
            add_to_server(manager, server)

        with served(add, "tieredstorage.v1.RemoteStorageManager") as (channel, address):
            yield SegmentObjectsClient(channel, address)
