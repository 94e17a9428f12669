"""The listening socket: on an address, on a path, or inherited from systemd."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator, MutableMapping
from contextlib import closing, contextmanager
from pathlib import Path

from usersctl.config import Settings
from usersctl.config.values import host_and_port
from usersctl.errors import ConfigError

BACKLOG = 1024
FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
FIRST_OF_SYSTEMD = 3  # the descriptor
LONGEST_PATH = 107  # bytes of a Unix socket's address


@contextmanager
def listening(settings: Settings, environ: MutableMapping[str, str]) -> Iterator[socket.socket]:
    """systemd's socket if there is one, else that of the configuration. Closes it at the end and removes its file."""
    inherited = from_systemd(environ)
    if inherited is None and settings.socket is not None:
        with _listening_at(settings.socket, int(settings.socket_mode, 8)) as listener:
            yield listener
    else:
        with closing(inherited or listen(settings.host, settings.port)) as listener:
            yield listener


def url_of(listener: socket.socket) -> str:
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://{host_and_port(host, port)}"


def address_of(listener: socket.socket) -> str | None:
    """The address that the socket is bound to, whatever is configured; None for a Unix socket."""
    if listener.family == socket.AF_UNIX:
        return None
    return str(listener.getsockname()[0])


# --- an address ---


def listen(host: str, port: int) -> socket.socket:
    """Opens a listening socket; port 0 takes a free one."""
    host = host.strip("[]")
    shown = host_and_port(host, port)
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ConfigError(f"{host}: no such host", hint="choose another with --host") from None
    # Clients of a name with both kinds of address, such as localhost, mostly use IPv4.
    family, *_, address = min(addresses, key=lambda info: info[0] != socket.AF_INET)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # `::` takes IPv4 clients, too
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(shown, host, error) from None
    return listener


def _cannot_listen(shown: str, host: str, error: OSError) -> ConfigError:
    low_port_hint = "choose a port from 1024 on with --port, and let a proxy take the other"
    problem, hint = {
        errno.EADDRINUSE: (" is already in use", "another usersd? choose another port with --port"),
        errno.EADDRNOTAVAIL: (f": {host} is not an address of this machine", "choose another with --host"),
        errno.EACCES: (": this user may not open that port", low_port_hint),
        errno.EPERM: (": this user may not open that port", low_port_hint),
    }.get(error.errno or 0, (f": {error.strerror}", None))
    return ConfigError(shown + problem, hint=hint)


# --- a path ---


@contextmanager
def _listening_at(path: Path, mode: int) -> Iterator[socket.socket]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with closing(listener):
        if len(os.fsencode(path)) > LONGEST_PATH:
            problem = f"{path} is too long for a Unix socket, which may have {LONGEST_PATH} bytes"
            raise ConfigError(problem, hint="choose a shorter path")
        try:
            with _one_at_a_time(path):
                _make_room(path)
                _bind(listener, path, mode)
                ours = _identity(path)
        except OSError as error:
            hint = {
                errno.ENOENT: "make the folder, and let the daemon's user write to it",
                errno.EACCES: "let the daemon's user write to the folder",
                errno.EROFS: "choose a folder that can be written; a unit of `usersctl snippet systemd` opens it",
            }.get(error.errno or 0)
            raise ConfigError(f"{path}: cannot listen there: {error.strerror}", hint=hint) from None
        try:
            yield listener
        finally:
            listener.close()
            with contextlib.suppress(OSError), _one_at_a_time(path):
                if _identity(path) == ours:  # another daemon may have replaced it meanwhile
                    path.unlink()


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Keeps two daemons that start at once from removing each other's socket.

    The lock is a file that only the daemon's user can open: a lock on the folder could be held by any user.
    """
    handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _make_room(path: Path) -> None:
    """Removes a socket that no process listens on; refuses to remove anything else."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise ConfigError(f"{path} is there, and is no socket", hint="choose another with --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(1)
        answer = caller.connect_ex(os.fspath(path))
    if answer != errno.ECONNREFUSED:
        raise ConfigError(f"{path} is already in use", hint="another usersd? choose another with --socket")
    path.unlink()


def _bind(listener: socket.socket, path: Path, mode: int) -> None:
    before = os.umask(0o177)  # no other user may connect before the mode is set
    try:
        listener.bind(os.fspath(path))
    finally:
        os.umask(before)
    path.chmod(mode)
    listener.listen(BACKLOG)


def _identity(path: Path) -> tuple[int, int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino, status.st_ctime_ns


# --- systemd's ---


def from_systemd(environ: MutableMapping[str, str]) -> socket.socket | None:
    """The socket of a `.socket` unit; None without one, or if it is meant for another process."""
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()):
        return None
    if count != "1":
        raise ConfigError(
            f"systemd hands over {count} sockets", hint="keep one ListenStream in usersd.socket"
        )
    try:
        os.set_inheritable(FIRST_OF_SYSTEMD, False)
        listener = socket.socket(fileno=FIRST_OF_SYSTEMD)
    except OSError as error:
        raise ConfigError(
            f"systemd hands over no socket: {error.strerror}", hint="it takes ListenStream"
        ) from None
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.close()
        raise ConfigError("systemd hands over a socket that does not listen", hint="it takes ListenStream")
    if listener.family not in FAMILIES or listener.type != socket.SOCK_STREAM:
        listener.close()
        raise ConfigError(
            "systemd hands over a socket of another kind",
            hint="it takes ListenStream, with an address or a path",
        )
    return listener
