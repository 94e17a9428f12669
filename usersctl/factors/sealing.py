"""Seals the secrets of authenticator apps with keys that are neither in the database nor in a backup of it.

The keys are those of auth.secretKey, then those of the file users.key beside the database: the first one seals, all open.
For a database on a server there is no file, because daemons on several machines need the same key.
A sealed secret begins with the name of its key, so that a missing key does not look like a damaged secret.
"""

import hmac
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, Self

from usersctl.clock import utc_now
from usersctl.config import Settings
from usersctl.config.values import BadValue, secret_keys
from usersctl.errors import KeyUnusable
from usersctl.named import NamedTuple
from usersctl.ownership import give_to
from usersctl.secrets import new_token, random_bytes
from usersctl.store.database_file import to_disk

FILE = "users.key"
NO_KEY = "auth.secretKey is not set, so no authenticator app can be added to a database on a server"
SET_KEY = "set it to the output of `openssl rand -base64 32`, the same on each machine"
_MOST_BYTES = 1024 * 1024
_UNFINISHED = ".users.key-"  # the beginning of the name of a file that is being written
_A_MINUTE = 60
NAME_BYTES, _NONCE = 8, 12  # at the beginning of a sealed secret


def totp_context(user_id: int) -> str:
    """Binds a sealed secret to its use and account: a copy of it in another row opens nothing."""
    return f"totp of user {user_id}"


def key_name_of(sealed: bytes) -> bytes:
    return sealed[:NAME_BYTES]


class SealingKey:
    def __init__(self, text: str) -> None:
        secret = text.encode("utf-8", "surrogatepass")
        self.name = hmac.digest(secret, b"usersctl: name of a sealing key", "sha256")[:NAME_BYTES]
        self._key = hmac.digest(secret, b"usersctl: AES-256-GCM by a sealing key", "sha256")

    def seal(self, plain: bytes, context: str) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = random_bytes(_NONCE)
        return self.name + nonce + AESGCM(self._key).encrypt(nonce, plain, context.encode())

    def open(self, sealed: bytes, context: str) -> bytes:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce, closed = sealed[NAME_BYTES : NAME_BYTES + _NONCE], sealed[NAME_BYTES + _NONCE :]
        try:
            return AESGCM(self._key).decrypt(nonce, closed, context.encode())
        except (InvalidTag, ValueError):
            message = "The secret of an authenticator app is damaged, or was copied from another account"
            raise KeyUnusable(message, hint="see: usersctl doctor") from None


class KeyFile(NamedTuple):
    """users.key beside a database. It is read at each use: another process may have made it, or added a key."""

    database: Path

    @property
    def place(self) -> str:
        return str(self.path)

    @property
    def path(self) -> Path:
        return self.database.resolve().with_name(FILE)

    def keys(self) -> tuple[str, ...]:
        """Empty if there is no file."""
        try:
            # O_NOFOLLOW: root must not read and rewrite the target of a link that another user put there.
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(handle, "rb") as opened:
                return secret_keys(opened.read(_MOST_BYTES).decode())
        except FileNotFoundError:
            return ()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", "not UTF-8")
            hint = "it has to be a file, not a link, that the user of the database can read"
            raise KeyUnusable(f"{self.path} cannot be read: {reason}", hint=hint) from None
        except BadValue as problem:
            raise KeyUnusable(f"{self.path} {problem}", hint="put the file back as it was") from None

    def make(self) -> tuple[str, ...]:
        """The keys of the file, which is made if there is none. Of several processes that make it, one succeeds."""
        keys = self.keys()
        if keys:
            return keys
        with self._unnamed((new_token(),), 0o600, self.database.resolve()) as file, suppress(FileExistsError):
            os.link(file, self.path)  # a rename would replace the file of another process
        return self.keys()

    def add(self) -> bool:
        """Puts a new key before the others. They go on to open what they sealed, also in backups.

        False without a file: the first secret makes it, and no older key has to be replaced.
        """
        if not self.keys():
            return False
        present = self.path.lstat()
        if os.geteuid() not in (0, present.st_uid):
            raise KeyUnusable(
                f"{self.path} belongs to another user", hint="run this as its owner, or as root"
            )
        with self._unnamed((new_token(), *self.keys()), present.st_mode & 0o777, self.path) as file:
            file.replace(self.path)
        return True

    @contextmanager
    def _unnamed(self, keys: tuple[str, ...], mode: int, of: Path) -> Iterator[Path]:
        """A complete file on the disk, which gets its name in the block: no process ever reads half of it.

        `of`: the file whose owner gets it.
        """
        import tempfile

        folder = self.path.parent
        try:
            owner = of.stat(follow_symlinks=False)
            _remove_unfinished(folder)
            handle, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=folder)
            file = Path(name)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as opened:
                    opened.write("".join(f"{key}\n" for key in keys))
                    os.fchmod(handle, mode)
                    give_to(owner, handle)
                    opened.flush()
                    os.fsync(handle)
                yield file
                to_disk(folder)
            finally:
                file.unlink(missing_ok=True)
        except OSError as error:
            hint = "set auth.secretKey, or make the folder writable"
            raise KeyUnusable(f"{self.path} cannot be written: {error.strerror}", hint=hint) from None


class NoKeyFile:
    """In its place, for a database on a server."""

    place = "auth.secretKey"

    def keys(self) -> tuple[str, ...]:
        return ()

    def make(self) -> NoReturn:
        raise KeyUnusable(NO_KEY, hint=SET_KEY)

    add = make


def _remove_unfinished(folder: Path) -> None:
    """What killed processes left. A file of one that still runs is younger."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        with suppress(FileNotFoundError):  # another process is done with its file
            if utc_now().timestamp() - path.lstat().st_mtime > _A_MINUTE:
                path.unlink()


class Sealer(NamedTuple):
    configured: tuple[str, ...]  # auth.secretKey
    file: KeyFile | NoKeyFile

    @classmethod
    def of(cls, settings: Settings) -> Self:
        database = settings.database
        return cls(settings.secret_keys, KeyFile(database) if isinstance(database, Path) else NoKeyFile())

    def __repr__(self) -> str:
        return f"<Sealer by {self.place}>"  # never a secret, wherever it is printed

    @property
    def place(self) -> str:
        """Where the key is, for people."""
        return "auth.secretKey" if self.configured else self.file.place

    def seal(self, plain: bytes, context: str) -> bytes:
        """`context` says what is sealed, and for which account; `open` needs the same."""
        keys = self.configured or self.file.make()
        return SealingKey(keys[0]).seal(plain, context)

    def open(self, sealed: bytes, context: str) -> bytes:
        """Raises KeyUnusable if no key opens it."""
        for key in self.keys():
            if key.name == key_name_of(sealed):
                return key.open(sealed, context)
        hint = "put the key back; or the user enrols again after: usersctl factor reset USER"
        raise KeyUnusable("The key that opens the secret of an authenticator app is missing", hint=hint)

    def missing(self, sealed_with: Mapping[bytes, int]) -> dict[bytes, int]:
        """Of the numbers of secrets by the name of their key: those whose key is not here."""
        names = self.names()
        return {name: count for name, count in sealed_with.items() if name not in names}

    def names(self) -> list[bytes]:
        """Of the keys; the first one seals."""
        return [key.name for key in self.keys()]

    def keys(self) -> Iterator[SealingKey]:
        """The file is not looked at while a key of auth.secretKey serves."""
        yield from map(SealingKey, self.configured)
        yield from map(SealingKey, self.file.keys())
