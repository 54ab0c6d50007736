"""Define the tests that every RemoteLogMetadataManager must pass, in process and over gRPC.

    @pytest.fixture
    def rlmm() -> RemoteLogMetadataManager: ...

    class TestMine(RemoteLogMetadataManagerContract): ...

The tables are those of Kafka's own tests. Two rows of table F no API can reach:
tests.contract.rlmm.look_ups.UNREACHABLE_ROWS_OF_TABLE_F.
"""

from collections import Counter
from importlib import import_module
from pkgutil import iter_modules

from tests.contract import rlmm
from tests.contract.rlmm.segments import RlmmContractPart

for _module in iter_modules(rlmm.__path__, f"{rlmm.__name__}."):
    import_module(_module.name)

PARTS = tuple(RlmmContractPart.__subclasses__())


class RemoteLogMetadataManagerContract(*PARTS):  # type: ignore[misc]
    """Collects all parts of the contract."""

    def test_no_part_of_the_contract_hides_a_test_of_another(self) -> None:
        names = Counter(name for part in PARTS for name in vars(part) if name.startswith("test_"))
        assert [name for name, count in names.items() if count > 1] == []
