"""What lies on the disk: settings, the database and what belongs to it, who may touch them, and the program itself."""

import os
import pwd
import shlex
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from usersctl.config.settings import KEYS
from usersctl.doctor.case import Case, UncheckedError, Verdict, hint, ok, problem, warning
from usersctl.errors import Outdated, UsersError
from usersctl.store import upgrade

LARGE_LOG = 64 * 1024 * 1024
LITTLE_ROOM = 100 * 1024 * 1024


def config(case: Case) -> Verdict:
    if isinstance(case.loaded, UsersError):
        return problem(str(case.loaded), case.loaded.hint or case.command("config check"))
    case.check_files(case.configuration)
    return ok(f"{case.loaded.file or 'no file: the defaults'}")


def config_files(case: Case) -> Verdict | None:
    origins, file = case.configuration.origins, case.configuration.file
    secrets = [name for name, key in KEYS.items() if key.secret and name in origins]
    holding = {origins[key].source for key in secrets}
    named = [Path(os.environ[name]) for name in holding if name.endswith("_FILE") and name in os.environ]
    for path in [*([file] if file else []), *named]:
        found = path.stat()
        if found.st_mode & 0o022 and not stat.S_ISCHR(found.st_mode):
            return problem(f"others may change {path}", f"chmod go-w {shlex.quote(str(path))}")
        if found.st_mode & 0o004 and (path in named or str(path) in holding):
            return problem(
                f"everybody on this machine can read the secrets in {path}",
                f"chmod o= {shlex.quote(str(path))}",
            )
        if found.st_uid not in (0, os.geteuid(), _owner_of_database(case)):
            return warning(
                f"{path} belongs to {_user(found.st_uid)}, who may change it",
                f"chown root {shlex.quote(str(path))}",
            )
    return ok("nobody else may change it, or read secrets in it") if file or named else None


def _owner_of_database(case: Case) -> int:
    path = case.settings.database
    return path.stat().st_uid if path.exists() else 0


def packages(_: Case) -> Verdict:
    versions = {name: _version(name) for name in ("crontab", "python-crontab", "typer")}
    if versions["python-crontab"]:
        return problem(
            "python-crontab is installed beside crontab, and one of them overwrote the other",
            "pip uninstall -y python-crontab && pip install --force-reinstall crontab",
        )
    if versions["typer"] and tuple(map(int, versions["typer"].split(".")[:2])) >= (0, 29):
        return hint(
            f"typer {versions['typer']} brings pydantic, with which every command starts slower",
            "pip install 'typer<0.29'",
        )
    return ok("nothing collides")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def database(case: Case) -> Verdict:
    opened, path = case.opened, case.settings.database
    if not isinstance(opened, UsersError) or isinstance(opened, Outdated):
        return ok(str(path))
    if not path.exists():
        return problem(str(opened), case.command("db init"))
    if not os.access(path, os.R_OK):
        return problem(str(opened), f"sudo -u {_user(path.stat().st_uid)} {case.command('doctor')}")
    return problem(str(opened), opened.hint or case.command("db restore FILE"))


def schema(case: Case) -> Verdict:
    if isinstance(case.opened, Outdated):
        return warning(str(case.opened), case.command("db migrate"))
    there = case.ask(lambda tx: tx.parts())
    missing = sorted(upgrade.names_of_schema().difference(there))
    if missing:
        return problem(f"without {', '.join(missing)}", case.command("db restore FILE"))
    return ok("every table, index and trigger is there")


def modes(case: Case) -> Verdict:
    folder, files = case.file.parent, list(_files(case))
    if folder.stat().st_mode & 0o002 and not folder.stat().st_mode & stat.S_ISVTX:
        return problem(f"everybody may put files into {folder}", f"chmod o-w {shlex.quote(str(folder))}")
    # A group that may write was given the file on purpose.
    open_to = [path for path in files if path.stat().st_mode & 0o007 or path.stat().st_mode & 0o060 == 0o040]
    if open_to:
        listed = " ".join(shlex.quote(str(path)) for path in open_to)
        return problem(
            f"others than the owner can get at {', '.join(path.name for path in open_to)}",
            f"chmod go= {listed}",
        )
    return ok("for its owner only")


def owners(case: Case) -> Verdict:
    owner = case.file.stat().st_uid
    foreign = [path for path in _files(case) if path.stat().st_uid != owner]
    if foreign:
        listed = " ".join(shlex.quote(str(path)) for path in foreign)
        return problem(
            f"{', '.join(path.name for path in foreign)} do not belong to {_user(owner)} as the database does",
            f"chown {_user(owner)} {listed}",
        )
    if os.geteuid() not in (0, owner):
        return hint(
            f"it belongs to {_user(owner)}, not to {_user(os.geteuid())} who asks",
            f"sudo -u {_user(owner)} {case.command('doctor')}",
        )
    return ok(_user(owner))


def _files(case: Case) -> Iterator[Path]:
    """The database and what lies beside it, the letters included."""
    path = case.file
    yield path
    yield from (found for end in ("-wal", "-shm") if (found := Path(f"{path}{end}")).exists())
    yield from sorted(path.parent.glob(f"{path.name}.before-*"))
    if (path.parent / "mail").is_dir():
        yield path.parent / "mail"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def integrity(case: Case) -> Verdict:
    log = Path(f"{case.file}-wal")
    was_open = log.exists()
    try:
        broken = case.ask(lambda tx: tx.broken_page())
    except UncheckedError as reason:
        if isinstance(case.opened, UsersError):
            raise
        return hint(f"it is large: {reason}", case.command("db verify"))
    if broken and log.exists() and not was_open:
        raise UncheckedError("somebody opened it in the meantime: look again")
    if broken:
        return problem(f"damaged: {broken}", case.command("db restore FILE"))
    return ok("every page is sound")


def log(case: Case) -> Verdict:
    log = Path(f"{case.file}-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > LARGE_LOG:
        return warning(
            f"{log.name} has grown to {_size(size)}: somebody keeps reading an old state of the database",
            "systemctl restart usersd",
        )
    return ok(_size(size))


def room(case: Case) -> Verdict:
    folder = case.settings.database.parent
    if not folder.is_dir():
        raise UncheckedError("there is no database")
    free = shutil.disk_usage(folder).free
    size = 0
    with suppress(OSError):
        size = case.settings.database.stat().st_size
    if free < LITTLE_ROOM:
        return problem(f"{_size(free)} are free where the database is", f"df -h {shlex.quote(str(folder))}")
    if free < 2 * size:
        return warning(
            f"{_size(free)} are free, too little for a copy of the database before an upgrade",
            f"df -h {shlex.quote(str(folder))}",
        )
    return ok(f"{_size(free)} are free")


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
