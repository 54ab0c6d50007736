"""Kill -9 RLMM around a commit: `sediment ship` goes on, and every change is made once."""

import pytest

from services.common.failpoints import FAILPOINTS
from tests.deep.test_rsm_kills import ship_while_it_dies
from tests.harness.variants import first_of
from tests.harness.world import World


@pytest.mark.parametrize("place", first_of(n for n in FAILPOINTS if n.startswith("rlmm.")))
@pytest.mark.parametrize("nth", [1, pytest.param(8, marks=pytest.mark.long)])
def test_rlmm_killed_around_a_commit(world: World, place: str, nth: int) -> None:
    ship_while_it_dies(world, world.rlmm, place, nth)
