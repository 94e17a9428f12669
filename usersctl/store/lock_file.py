"""The file beside the database that processes lock. The kernel frees the locks of a process that dies.

The leader locks the file as a whole, and the process that sends an email locks the byte with the email's number.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Locks of an open file and not of a process: two threads exclude each other, and closing another handle frees nothing.
# Linux has them.
HAS_BYTE_LOCKS = hasattr(fcntl, "F_OFD_SETLK")
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, pid


def path_beside(database: Path) -> Path:
    database = database.resolve()
    return database.with_name(f"{database.name}.lock")


def open_beside(database: Path) -> int:
    owner = database.stat()
    # A group that may write to the database may send its emails, too.
    mode = 0o600 | owner.st_mode & 0o060
    # O_NOFOLLOW: root must not give away the target of a link that another user put there.
    handle = os.open(path_beside(database), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    if os.geteuid() == 0 and owner.st_uid != 0:
        # As SQLite does with its files: a start by root must not lock out the daemon's own user.
        os.fchown(handle, owner.st_uid, owner.st_gid)
    return handle


@contextmanager
def opened(database: Path) -> Iterator[int]:
    """The handle of the file; its locks end with it."""
    handle = open_beside(database)
    try:
        yield handle
    finally:
        os.close(handle)


def lock_byte(handle: int, number: int) -> bool:
    """False if another handle holds it."""
    if not HAS_BYTE_LOCKS:
        return True
    wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, wanted)
    except BlockingIOError:
        return False
    return True


def is_locked(handle: int, number: int) -> bool:
    """Whether another handle has locked the byte."""
    if not HAS_BYTE_LOCKS:
        return False
    wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
    found = struct.unpack(_FLOCK, fcntl.fcntl(handle, fcntl.F_OFD_GETLK, wanted))
    return bool(found[0] != fcntl.F_UNLCK)
