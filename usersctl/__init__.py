"""User accounts and authentication: the core, over SQLite or PostgreSQL, and the command that administers it."""

__version__ = "0.1.0"
