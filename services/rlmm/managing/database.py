"""What every part of the manager works on."""

from sqlalchemy import Engine

from services.rlmm.limits import Limits
from services.rlmm.transactions import Transactions


class OnDatabase:
    """A part of the manager. Stateless over the database."""

    def __init__(self, engine: Engine, limits: Limits | None = None) -> None:
        self._transactions = Transactions(engine)
        self._limits = limits or Limits()
        self._database = f"{engine.url.host}:{engine.url.port}/{engine.url.database}"
