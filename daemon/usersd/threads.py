"""gevent puts its own threads in the place of Python's. What was made before would be shared by requests that must not."""

import threading

_as_imported = threading.local


def check() -> None:
    """Otherwise requests would use one connection of the database, and one would commit what another has half done."""
    if threading.local is not _as_imported:
        raise RuntimeError(
            "gevent replaced Python's threads after the application was imported: start gunicorn without --preload,"
            " or let gevent.monkey.patch_all() come first"
        )
