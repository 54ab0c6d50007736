"""RLM dies again and again, at chosen places and at any time, and is started anew."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from services.common.failpoints import FAILPOINTS
from services.local.process import ProcessError
from services.local.stack import ServiceProcess
from tests.harness.eventually import Background

PLACES = [name for name in FAILPOINTS if name.startswith(("copy.", "cleanup."))]
LONGEST_LIFE_S = 4.0
# On a slow machine an RLM that lives no longer than it starts would never copy anything.
LIVES_PER_START = 2.0
LONGEST_AWAY_S = 0.5
MOST_PASSES = 12
KILLED = -9


class RlmKiller(Background):
    """Kills a running RLM as long as it is entered; then it runs. Every second life is to end at
    one of PLACES, if it gets there; all end by SIGKILL.

    Attributes:
        kills: how often it was killed, by us or at a place.
    """

    def __init__(self, rlm: ServiceProcess, seed: int) -> None:
        super().__init__()
        self._rlm = rlm
        self._random = random.Random(seed)
        self._turn = Lock()
        self._longest_life_s = LONGEST_LIFE_S
        self.kills = 0

    @contextmanager
    def spared(self) -> Iterator[None]:
        """RLM runs, and lives until the end of the block; it will not die at a place either."""
        with self._turn:
            self._rlm.kill()
            self._rlm.start()
            yield

    def run(self) -> None:
        while not self.wait(self._random.uniform(0.0, self._longest_life_s)):
            with self._turn:
                self._kill_and_restart()
        self._rlm.kill()
        self._rlm.start()

    def _kill_and_restart(self) -> None:
        self._rlm.kill()
        assert self._rlm.process.returncode == KILLED
        self.kills += 1
        self.wait(self._random.uniform(0.0, LONGEST_AWAY_S))
        place, nth = self._random.choice(PLACES), self._random.randint(1, MOST_PASSES)
        armed = {"SEDIMENT_FAILPOINT": f"{place}:{nth}"} if self.kills % 2 else {}
        started_s = time.monotonic()
        # It may come to its place before it says that it is ready.
        with suppress(ProcessError):
            self._rlm.start(armed)
        start_s = time.monotonic() - started_s
        self._longest_life_s = max(LONGEST_LIFE_S, LIVES_PER_START * start_s)
