"""Checks of second factors: the key that seals secrets, and the address that passkeys were made for."""

import stat
from pathlib import Path
from typing import TYPE_CHECKING

from usersctl.config.providers import host_of
from usersctl.doctor.installation import Installation, Result, hint, ok, problem, warning
from usersctl.text import counted, listed, quoted_file

if TYPE_CHECKING:
    from usersctl.factors.sealing import Sealer

MOST_NAMED = 5  # addresses of accounts


def secret_key(installation: Installation) -> Result | None:
    """The keys that seal the secrets of authenticator apps, once there are some."""
    # late: it loads OpenSSL
    from usersctl.factors.sealing import FILE, NAME_BYTES, NO_KEY, SET_KEY, KeyFile, Sealer

    sealer = Sealer.of(installation.settings)
    if isinstance(sealer.file, KeyFile):
        exposed = _exposed(sealer.file.path, installation.database)
        if exposed is not None:
            return exposed
    sealed_with = installation.query(lambda tx: tx.count_totp_by_beginning(NAME_BYTES))
    names = sealer.names()
    if not names and not sealed_with:
        return warning(NO_KEY, SET_KEY) if installation.is_on_server else None
    missing = sealer.missing(sealed_with)
    if missing:
        return _unreadable(installation, sealer, missing)
    older = sum(sealed_with.values()) - sealed_with.get(names[0], 0)
    if older:
        message = f"{counted(older, 'secret')} of authenticator apps sealed with an older key"
        return hint(message, installation.command("key rotate"))
    where = "auth.secretKey" if sealer.configured else FILE
    secrets = counted(sum(sealed_with.values()), "secret")
    return ok(f"{where} opens {secrets}; keep a copy of it apart from the backups")


def _exposed(key: Path, database: Path) -> Result | None:
    try:
        found = key.lstat()
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):
        return None  # it is not read, and its mode means nothing
    owner = database.stat()
    quoted = quoted_file(key)
    # A group that may write to the database may have been given the key on purpose.
    open_to_group = found.st_mode & 0o070 and not owner.st_mode & stat.S_IWGRP
    if found.st_mode & 0o007 or open_to_group:
        return problem(f"other users can read {key.name}", f"chmod go= {quoted}")
    if found.st_uid != owner.st_uid:
        message = f"{key.name} belongs to another user than the database"
        return problem(message, f"chown --reference={quoted_file(database)} {quoted}")
    return None


def _unreadable(installation: Installation, sealer: "Sealer", missing: dict[bytes, int]) -> Result:
    count = sum(missing.values())
    users = installation.query(
        lambda tx: [email for key in missing for email in tx.emails_of_totp(key, MOST_NAMED + 1)]
    )
    message = f"no key opens {counted(count, 'secret')} of authenticator apps: {listed(users, MOST_NAMED)}"
    return problem(
        message,
        f"put the key back into {sealer.place}; or for each: {installation.command('factor reset USER --totp')}",
    )


def rules(installation: Installation) -> Result | None:
    """Pages that need two factors, where no user can add the second."""
    settings = installation.settings
    if not settings.factor_rules:
        return None
    if settings.second_factor == "off" and not settings.trusted_providers:
        message = (
            f"no new user can open {settings.factor_rules[0]} of auth.factorRules: auth.secondFactor is off"
        )
        return warning(message, 'set auth.secondFactor to "optional"')
    return ok(counted(len(settings.factor_rules), "rule"))


def passkeys(installation: Installation) -> Result | None:
    """A passkey works at the host name that it was made for, and at no other one."""
    made_for = installation.query(lambda tx: tx.count_passkeys_by_rp())
    if not made_for:
        return None
    host = host_of(installation.settings.base_url)
    elsewhere = {rp_id: count for rp_id, count in made_for.items() if rp_id != host}
    if not elsewhere:
        return ok(f"{made_for[host]} of {host}")
    hosts = ", ".join(f"{count} of {rp_id}" for rp_id, count in sorted(elsewhere.items())[:MOST_NAMED])
    message = f"made for another address, and of no use at {host}: {hosts}"
    mend = f"set baseUrl to https://{min(elsewhere)} again, or users make new ones"
    return warning(message, mend)
