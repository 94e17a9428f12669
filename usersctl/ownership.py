"""Whose a file is that root makes. As with SQLite's own files, a command of root must not lock out the daemon's user."""

import os


def give_to(owner: os.stat_result, handle: int) -> None:
    """Only root can. Without the right to it, as in some containers, that is a PermissionError."""
    present = os.fstat(handle)
    if os.geteuid() == 0 and (present.st_uid, present.st_gid) != (owner.st_uid, owner.st_gid):
        os.fchown(handle, owner.st_uid, owner.st_gid)
