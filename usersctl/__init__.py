"""User accounts and authentication over SQLite: the core, and the command that administers it."""

__version__ = "0.1.0"
