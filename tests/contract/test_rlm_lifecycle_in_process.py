"""Run the leadership suite on the manager itself."""

import pytest

from services.rlm.manager import BrokerRemoteLogManager
from tests.contract.rlm_lifecycle_contract import RlmLifecycleContract
from tests.harness.callback_rlm import callback_rlm
from tests.harness.ship_stack import Stack


class TestInProcess(RlmLifecycleContract):
    @pytest.fixture
    def rlm(self, stack: Stack) -> BrokerRemoteLogManager:
        made: BrokerRemoteLogManager = callback_rlm(stack)
        return made
