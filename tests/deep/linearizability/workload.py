"""One of several concurrent clients of RLMM."""

from dataclasses import dataclass
from random import Random
from threading import Event

from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from tests.deep.linearizability.client import ask
from tests.deep.linearizability.draws import Draw, UsedPartition
from tests.deep.linearizability.history import Recorder
from tests.deep.linearizability.operations import Answered, Listed, Lost, Operation, Read, Reply

MAX_REPEATS = 6
PAUSE_AFTER_LOSS_S = 0.05


@dataclass
class RandomClient:
    """One thread's worth of operations, the same for the same seed but for what it meets.

    Attributes:
        rlmms: to any of which it turns; after a lost reply to the next one.
    """

    name: str
    random: Random
    rlmms: list[RemoteLogMetadataManager]
    partitions: list[UsedPartition]
    recorder: Recorder
    stopping: Event

    def run(self) -> None:
        """Operations, one after another, until `stopping`."""
        while not self.stopping.is_set():
            partition = self.random.choice(self.partitions)
            self._do(partition, self.draw(partition))

    def _do(self, partition: UsedPartition, operation: Operation) -> None:
        """Ask, and mostly ask again for what was lost: under its request id, if it has one."""
        for _ in range(self.random.randrange(1, MAX_REPEATS)):
            reply = self._ask(partition, operation)
            if not isinstance(reply, Lost):
                self._note_revision(partition, reply)
                return
            self.rlmms.append(self.rlmms.pop(0))
            self.stopping.wait(PAUSE_AFTER_LOSS_S)
            if isinstance(operation, Read) or self.stopping.is_set():
                return

    def _ask(self, partition: UsedPartition, operation: Operation) -> Reply:
        rlmm = self.rlmms[0] if self.random.random() < 0.8 else self.random.choice(self.rlmms)
        return self.recorder.perform(
            self.name, partition.name, operation, lambda: ask(rlmm, partition.tp, operation)
        )

    def _note_revision(self, partition: UsedPartition, reply: Reply) -> None:
        match reply:
            case Answered(revision=revision):
                partition.revision = revision
            case Listed(page):
                partition.revision = page.revision

    def draw(self, partition: UsedPartition) -> Operation:
        """The next operation of a partition."""
        return Draw(self.random, partition, partition.used()).operation()
