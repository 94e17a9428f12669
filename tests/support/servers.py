"""Programs of Python packages that only some tests need."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def installed(program: str, extra: str = "servers") -> Path:
    """A missing one skips the test, or fails it with SERVER_TESTS=required or APPLICATION_TESTS=required."""
    if not (BIN / program).exists():
        _lacks(program, extra)
    return BIN / program


def importable(module: str, extra: str = "servers") -> None:
    """The same for a library that brings no program."""
    if find_spec(module) is None:
        _lacks(module, extra)


def _lacks(name: str, extra: str) -> None:
    lacking = f"needs {name}: pip install -e '.[{extra}]'"
    if os.environ.get(f"{extra.removesuffix('s').upper()}_TESTS") == "required":
        pytest.fail(lacking)
    pytest.skip(lacking)
