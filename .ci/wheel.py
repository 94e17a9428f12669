"""A build hook of hatchling: the manual page is installed, and an editable installation starts as fast as a wheel.

pip compiles what it copies into an environment, but never the sources that an editable installation points to. Where
Python may not write byte code (PYTHONDONTWRITEBYTECODE, a checkout that somebody else owns), each command would compile
them again: a third of the time that `usersctl list` takes.
"""

import compileall
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MAN_PAGE = "docs/usersctl.1"
QUIET = 2  # a source that cannot be written beside is no reason to fail


class Wheel(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # Whoever builds an image may have copied what runs, and no documentation.
        if Path(self.root, MAN_PAGE).exists():
            build_data["shared_data"][MAN_PAGE] = "share/man/man1/usersctl.1"
        if version == "editable":
            for package in self.build_config.packages:
                compileall.compile_dir(Path(self.root, package), quiet=QUIET)
