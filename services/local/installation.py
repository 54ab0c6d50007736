"""Say how to install an extra of pyproject.toml, for the kind of installation that runs."""

import shlex
import sys
from pathlib import Path

import services

_ROOT = Path(services.__file__).parents[1]
_VENV = _ROOT / ".venv"
_INSTALL = Path("supply_chain", "install")
CHART_LIBRARY = _ROOT / "services" / "console" / "static" / "vendor" / "uPlot.esm.js"


def how_to_install(extra: str, target: str) -> str:
    """Return what to run; all of it installs from the lock, by hash.

    Args:
        target: the target of make that installs the extra into the checkout's .venv.
    """
    if Path(sys.prefix) == _VENV:
        return f"run `make -C {shlex.quote(str(_ROOT))} {target}`"
    # An environment by another tool, or an image, which has no pip.
    where = str(_ROOT) if (_ROOT / _INSTALL).is_file() else "Sediment's checkout"
    return (
        f"run `{_INSTALL} ENVIRONMENT services {extra}` in {where}, and use the new environment "
        "that it makes"
    )
