"""Run the leadership suite on the manager itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.rlm.manager import BrokerRemoteLogManager
from tests.contract.rlm_lifecycle_contract import RlmLifecycleContract
from tests.harness.callback_rlm import callback_rlm
from tests.harness.ship_stack import Stack, running_stack
from tests.unit.rlm.kafka_bytes import write_log_dir


@pytest.fixture
def stack(database_url: str, tmp_path: Path) -> Iterator[Stack]:
    with running_stack(database_url, tmp_path / "objects") as made:
        yield made


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return write_log_dir(tmp_path / "logs")


class TestInProcess(RlmLifecycleContract):
    @pytest.fixture
    def rlm(self, stack: Stack, log_dir: Path) -> BrokerRemoteLogManager:
        made: BrokerRemoteLogManager = callback_rlm(stack, log_dir)
        return made
