"""Checks of what is on the disk: configuration, packages, the database and the files beside it."""

import os
import pwd
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from usersctl.config.settings import key_called
from usersctl.config.sources import unread_variables
from usersctl.doctor.installation import Installation, Result, UncheckedError, hint, ok, problem, warning
from usersctl.errors import Damaged, OtherVersion, Outdated, UsersError
from usersctl.mail.folder import mail_folder
from usersctl.store.conninfo import Conninfo, file_of
from usersctl.store.database_file import closed_to_this_user, replaced
from usersctl.text import quoted_file, with_options

LARGE_LOG = 64 * 1024 * 1024
LITTLE_ROOM = 100 * 1024 * 1024
SAME_FILES = {"python-crontab": "crontab", "jwt": "pyjwt"}  # packages that install files where ours do


def config(installation: Installation) -> Result:
    loaded = installation.loaded
    if isinstance(loaded, UsersError):
        return problem(str(loaded), installation.mend_of(loaded) or installation.command("config check"))
    installation.check_files(loaded)
    return ok(str(loaded.file or "no file, so the defaults apply"))


def environment(installation: Installation) -> Result | None:
    unread = unread_variables()
    return hint(unread, installation.command("config explain")) if unread else None


def config_files(installation: Installation) -> Result | None:
    origins, file = installation.configuration.origins, installation.configuration.file
    keys = {name: key_called(name) for name in origins}
    sources = {origins[name].source for name, key in keys.items() if key and key.secret}
    database = installation.settings.database
    if isinstance(database, Conninfo) and database.has_password:
        sources.add(origins["database"].source)
    if installation.settings.webhooks:
        sources.add(origins["webhooks"].source)
    secrets = [Path(os.environ[name]) for name in sources if name.endswith("_FILE") and name in os.environ]
    files = [*filter(None, [file]), *secrets]
    for path in files:
        status, quoted = path.stat(), quoted_file(path)
        if status.st_mode & 0o022 and not stat.S_ISCHR(status.st_mode):
            return problem(f"other users may change {path}", f"chmod go-w {quoted}")
        if status.st_mode & 0o004 and (path in secrets or str(path) in sources):
            return problem(f"every user of this machine can read the secrets in {path}", f"chmod o= {quoted}")
        if status.st_uid not in (0, os.geteuid(), _owner_of_database(installation)):
            return warning(f"{_user(status.st_uid)} owns {path} and may change it", f"chown root {quoted}")
    return ok("no other user may change it, or read secrets in it") if files else None


def _owner_of_database(installation: Installation) -> int:
    path = installation.settings.database
    return path.stat().st_uid if isinstance(path, Path) and path.exists() else 0


def packages(_: Installation) -> Result:
    for other, ours in SAME_FILES.items():
        if _version(other):
            message = f"{other} is installed beside {ours}, and one of them has overwritten the other"
            return problem(message, f"pip uninstall -y {other} && pip install --force-reinstall {ours}")
    typer = _version("typer")
    if typer and tuple(map(int, typer.split(".")[:2])) >= (0, 29):
        return hint(f"typer {typer} loads pydantic: every command starts slower", "pip install 'typer<0.29'")
    return ok("no conflicts")


def _version(distribution: str) -> str | None:
    from importlib import metadata  # late: it imports email and csv

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def database(installation: Installation) -> Result:
    opened, path = installation.opened, installation.settings.database
    if isinstance(path, Conninfo):
        return _on_server(installation, path)
    if not isinstance(opened, UsersError) or isinstance(opened, Outdated):
        return ok(str(path))
    if not path.exists():
        way_on = opened.hint if path.is_symlink() else installation.command("db init")
        return problem(str(opened), way_on)
    closed = closed_to_this_user(path)
    if closed is not None:
        owner = closed.stat().st_uid
        if owner == os.geteuid():
            return problem(str(opened), f"chmod u+rw {quoted_file(closed)}")
        return problem(str(opened), f"sudo -u {_user(owner)} {installation.command('doctor')}")
    way_on = opened.hint
    if way_on is None or isinstance(opened, Damaged):
        way_on = replaced(path)
    return problem(str(opened), with_options(way_on, installation.options))


def _on_server(installation: Installation, conninfo: Conninfo) -> Result:
    opened = installation.opened
    if not isinstance(opened, UsersError):
        return ok(f"{opened.name}: PostgreSQL {installation.server.version}, {installation.server.encoding}")
    if isinstance(opened, Outdated):
        return ok(conninfo.shown)
    return problem(str(opened), installation.mend_of(opened) or installation.command("db init"))


def schema(installation: Installation) -> Result:
    if isinstance(installation.opened, Outdated):
        return warning(str(installation.opened), installation.command("db migrate"))
    missing = installation.query(lambda tx: tx.missing_parts())
    if missing:
        mend = installation.command("db restore FILE")
        if installation.is_on_server:  # there a restore could not keep what it replaces
            mend = "createdb NAME; usersctl db restore FILE --db CONNINFO"
        return problem(f"{', '.join(sorted(missing))} missing", mend)
    return ok("all tables, indexes and triggers exist")


def modes(installation: Installation) -> Result:
    folder = installation.database.parent
    read_only = _read_only(installation)
    if read_only is not None:
        return read_only
    mode = folder.stat().st_mode
    if mode & 0o002:  # a log that another user puts beside the database replaces its content
        message = f"every user may put files into {folder}"
        if mode & stat.S_ISVTX:  # a folder for all, such as /tmp, has to stay one
            return problem(message, installation.command("db move FILE"))
        return problem(message, f"chmod o-w {quoted_file(folder)}")
    modes = {path: path.stat().st_mode for path in _files(installation)}
    # A group that may write was given the file on purpose.
    exposed = [path for path, mode in modes.items() if mode & 0o007 or mode & 0o060 == 0o040]
    if exposed:
        return problem(f"other users can access {_names(exposed)}", f"chmod go= {_quoted(exposed)}")
    return ok("only the owner has access")


def _read_only(installation: Installation) -> Result | None:
    """What the owner of the database, as whom a daemon runs, cannot write."""
    database = installation.database
    if isinstance(installation.opened, OtherVersion) and not isinstance(installation.opened, Outdated):
        return None  # one that was moved away is read-only on purpose
    owner = database.stat().st_uid
    logs = filter(Path.exists, (installation.log, Path(f"{database}-shm")))
    paths = [path for path in (database, *logs, database.parent) if not _may_write(owner, path)]
    if not paths:
        return None
    message, quoted = f"{paths[0]} is read-only", _quoted(paths[:1])
    if paths[0].stat().st_uid != owner:
        return problem(message, f"chown {_user(owner)} {quoted}")
    lacking = [path for path in paths if not path.stat().st_mode & stat.S_IWUSR]
    if lacking:
        return problem(message, f"chmod u+w {_quoted(lacking)}")
    return problem(message, f"findmnt -T {quoted}; lsattr -d {quoted}")


def _may_write(owner: int, path: Path) -> bool:
    """As far as this user can tell. Root may whatever the mode is, but not on a read-only disk."""
    status = path.stat()
    if status.st_uid == owner != 0 and not status.st_mode & stat.S_IWUSR:
        return False
    return os.geteuid() not in (0, owner) or os.access(path, os.W_OK)


def owners(installation: Installation) -> Result:
    owner = installation.database.stat().st_uid
    foreign = [path for path in _files(installation) if path.stat().st_uid != owner]
    name = _user(owner)
    if foreign:
        message = f"{_names(foreign)} should belong to {name}, as the database does"
        return problem(message, f"chown {name} {_quoted(foreign)}")
    if os.geteuid() not in (0, owner):
        message = f"the database belongs to {name}, and this command runs as {_user(os.geteuid())}"
        return hint(message, f"sudo -u {name} {installation.command('doctor')}")
    return ok(name)


def _files(installation: Installation) -> Iterator[Path]:
    """The database, its log, the copies that upgrades left beside it, and the folder of emails."""
    path = installation.database
    beside = [installation.log, Path(f"{path}-shm"), *sorted(path.parent.glob(f"{path.name}.before-*"))]
    yield path
    yield from filter(Path.exists, beside)
    yield from filter(Path.is_dir, [mail_folder(installation.settings)])


def _names(paths: Iterable[Path]) -> str:
    return ", ".join(path.name for path in paths)


def _quoted(paths: Iterable[Path]) -> str:
    return " ".join(quoted_file(path) for path in paths)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def integrity(installation: Installation) -> Result:
    log = installation.log
    was_open = log.exists()
    try:
        damage = installation.query(lambda tx: tx.broken_page() or next(tx.not_utf8(), None))
    except UncheckedError as reason:
        if isinstance(installation.opened, UsersError):
            raise
        return hint(f"too large for this check: {reason}", installation.command("db verify"))
    if damage and log.exists() and not was_open:
        raise UncheckedError("another process opened it during the check: repeat it")
    if damage:
        return problem(f"damaged: {damage}", installation.command("db restore FILE"))
    return ok("every page and every text is sound")


def log(installation: Installation) -> Result:
    log, size = installation.log, 0
    if log.exists():
        size = log.stat().st_size
    if size > LARGE_LOG:
        reason = "a process keeps reading an old state of the database"
        return warning(f"{log.name} has grown to {_size(size)}: {reason}", installation.restart)
    return ok(_size(size))


def disk(installation: Installation) -> Result:
    path = file_of(installation.settings.database)
    if not path.parent.is_dir():
        raise UncheckedError("there is no database")
    free, size = shutil.disk_usage(path.parent).free, 0
    with suppress(OSError):
        size = path.stat().st_size
    mend = f"df -h {quoted_file(path.parent)}"
    if free < LITTLE_ROOM:
        return problem(f"only {_size(free)} are free on the disk of the database", mend)
    if free < 2 * size:
        return warning(f"{_size(free)} are free, too little to copy the database before an upgrade", mend)
    return ok(f"{_size(free)} are free")


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
