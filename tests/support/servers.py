"""Programs of Python packages that only some tests need."""

import os
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def installed(program: str, extra: str = "servers") -> Path:
    """A missing one skips the test, or fails it with SERVER_TESTS=required or APPLICATION_TESTS=required."""
    if not (BIN / program).exists():
        lacking = f"needs {program}: pip install -e '.[{extra}]'"
        if os.environ.get(f"{extra.removesuffix('s').upper()}_TESTS") == "required":
            pytest.fail(lacking)
        pytest.skip(lacking)
    return BIN / program
