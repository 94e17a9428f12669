"""The file beside the database that processes lock. The kernel frees the locks of a process that dies.

The leader locks the file as a whole, and the process that sends an email locks the byte with the email's number.
"""

import fcntl
import os
import stat
import struct
from pathlib import Path
from threading import Event

from usersctl.store.locks import LEADER

# Locks of an open file and not of a process: two threads exclude each other, and closing another handle frees nothing.
# Linux has them.
HAS_BYTE_LOCKS = hasattr(fcntl, "F_OFD_SETLK")
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, pid


class FileLocks:
    look_every = 0.1

    def __init__(self, database: Path) -> None:
        self._handle = _open_beside(database)

    def take(self, number: int) -> bool:
        try:
            if number == LEADER:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            elif HAS_BYTE_LOCKS:
                fcntl.fcntl(self._handle, fcntl.F_OFD_SETLK, _byte(number))
        except BlockingIOError:
            return False
        return True

    def is_taken(self, number: int) -> bool:
        if not HAS_BYTE_LOCKS:
            return False
        found = struct.unpack(_FLOCK, fcntl.fcntl(self._handle, fcntl.F_OFD_GETLK, _byte(number)))
        return bool(found[0] != fcntl.F_UNLCK)

    def hear(self, stopping: Event, seconds: float) -> bool:
        stopping.wait(seconds)
        return False

    def close(self) -> None:
        os.close(self._handle)


def path_beside(database: Path) -> Path:
    database = database.resolve()
    return database.with_name(f"{database.name}.lock")


def _open_beside(database: Path) -> int:
    from usersctl.ownership import give_to  # late: most commands make no file

    owner = database.stat()
    # A group that may write to the database may send its emails, too.
    mode = 0o600 | owner.st_mode & 0o060
    # O_NOFOLLOW: root must not give away the target of a link that another user put there.
    handle = os.open(path_beside(database), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    give_to(owner, handle)
    present = os.fstat(handle)
    if mode & ~present.st_mode and os.geteuid() in (0, present.st_uid):
        os.fchmod(handle, stat.S_IMODE(present.st_mode) | mode)  # the umask took the group's part away
    return handle


def _byte(number: int) -> bytes:
    return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
