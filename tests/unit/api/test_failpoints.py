"""Check that the registry of failpoints lists exactly the places that call failpoint()."""

import re
from pathlib import Path

import services
from services.common.failpoints import FAILPOINTS


def test_every_failpoint_is_passed_somewhere_and_none_is_unregistered() -> None:
    root = Path(services.__file__).parent
    files = [*root.rglob("*.py"), *(root.parent / "spark_jobs").rglob("*.py")]
    sources = [path.read_text() for path in files if path.name != "failpoints.py"]
    passed = set(re.findall(r'failpoint\("([^"]+)"\)', "\n".join(sources)))
    assert passed == set(FAILPOINTS)
