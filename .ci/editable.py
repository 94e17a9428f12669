"""A build hook of hatchling: an editable installation starts as fast as an installed wheel.

pip compiles what it copies into an environment, but never the sources that an editable installation points to. Where
Python may not write byte code (PYTHONDONTWRITEBYTECODE, a checkout that somebody else owns), each command would compile
them again: a third of the time that `usersctl list` takes.
"""

import compileall
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

QUIET = 2  # a source that cannot be written beside is no reason to fail


class CompileSources(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's interface
        if version == "editable":
            for package in self.build_config.packages:
                compileall.compile_dir(Path(self.root, package), quiet=QUIET)
