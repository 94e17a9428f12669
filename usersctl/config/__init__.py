"""Configuration: which keys there are, what their values may be, and which source wins."""

from usersctl.config.settings import Settings
from usersctl.config.sources import Loaded, load

__all__ = ["Loaded", "Settings", "load"]
