"""Programs of Python packages that only some tests need."""

import os
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def installed(program: str) -> Path:
    """A missing server skips the test, or fails it with SERVER_TESTS=required."""
    if not (BIN / program).exists():
        lacking = f"needs {program}: pip install -e '.[servers]'"
        if os.environ.get("SERVER_TESTS") == "required":
            pytest.fail(lacking)
        pytest.skip(lacking)
    return BIN / program
