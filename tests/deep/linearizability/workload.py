"""One of several concurrent clients of RLMM."""

from dataclasses import dataclass
from random import Random
from threading import Event

from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from tests.deep.histories.draws import ConcurrentDraws, SharedModel
from tests.deep.histories.history import Recorder
from tests.deep.histories.operations import Lost, Operation

MAX_REPEATS = 6
PAUSE_AFTER_LOSS_S = 0.05


@dataclass
class RandomClient:
    """One thread's worth of operations.

    Attributes:
        rlmms: to any of which it turns; after a lost reply to the next one.
        shared: the model of all clients, from which they draw.
    """

    name: str
    random: Random
    rlmms: list[RemoteLogMetadataManager]
    shared: SharedModel
    recorder: Recorder
    stopping: Event

    def run(self) -> None:
        """Perform operations, one after another, until `stopping`."""
        draws = ConcurrentDraws(self.random, self.shared)
        while not self.stopping.is_set():
            self._perform(draws.next())

    def _perform(self, operation: Operation) -> None:
        """Call, and mostly call again for what was lost: under its request id, if it has one."""
        for _ in range(self.random.randrange(1, MAX_REPEATS)):
            reply = self._call(operation)
            if not isinstance(reply, Lost):
                self.shared.apply(operation, reply)
                return
            self.rlmms.append(self.rlmms.pop(0))
            self.stopping.wait(PAUSE_AFTER_LOSS_S)
            if not operation.is_mutation or self.stopping.is_set():
                return

    def _call(self, operation: Operation) -> object:
        rlmm = self.rlmms[0] if self.random.random() < 0.8 else self.random.choice(self.rlmms)
        return self.recorder.perform(
            self.name, operation, lambda: operation.reply(rlmm, self.shared.space)
        )
