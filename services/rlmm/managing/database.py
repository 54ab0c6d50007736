"""What every part of the manager works on."""

from collections.abc import Callable

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from services.api.calls import MutationContext, MutationOutcome
from services.rlmm.limits import Limits, check_storable
from services.rlmm.outcomes import Body, applied_once
from services.rlmm.tables import PartitionRow
from services.rlmm.transactions import Transactions


class OnDatabase:
    """A part of the manager. Stateless over the database."""

    def __init__(self, engine: Engine, limits: Limits | None = None) -> None:
        self._transactions = Transactions(engine)
        self._limits = limits or Limits()
        self._database = f"{engine.url.host}:{engine.url.port}/{engine.url.database}"

    def _change_once(
        self,
        body: Body,
        context: MutationContext,
        lock: Callable[[Session], PartitionRow],
        apply: Callable[[Session, PartitionRow], MutationOutcome],
        *,
        counts_repeats: bool = True,
    ) -> MutationOutcome:
        """`apply` to the partition that `lock` gives, in one transaction; see applied_once."""
        check_storable(context)

        def work(session: Session) -> MutationOutcome:
            partition = lock(session)
            return applied_once(
                session,
                partition,
                body,
                context,
                lambda: apply(session, partition),
                counts_repeats=counts_repeats,
            )

        return self._transactions.change(work)
