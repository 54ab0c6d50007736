"""The model itself, against Kafka's tables and what the contract's tests say beside them."""

import pytest

from tests.contract.rlmm.lists import TableB, TableC, TableE
from tests.contract.rlmm.look_ups import OverlapsBeyondKafka, TableA, TableF, TableG
from tests.contract.rlmm.partition_deletion import AfterDeletion, TableD
from tests.contract.rlmm.request_ids import RequestIds
from tests.contract.rlmm.transitions import Fences, Repeats, TableH
from tests.deep.model.reference import ReferenceRemoteLogMetadataManager


class TestReference(
    TableA,
    TableB,
    TableC,
    TableD,
    TableE,
    TableF,
    TableG,
    TableH,
    OverlapsBeyondKafka,
    Repeats,
    Fences,
    AfterDeletion,
    RequestIds,
):
    @pytest.fixture
    def rlmm(self) -> ReferenceRemoteLogMetadataManager:
        """Not all of the contract; all that these tests call."""
        return ReferenceRemoteLogMetadataManager()
