"""Checks of the addresses and servers in the configuration, and of the daemon on this machine."""

import errno
import os

from usersctl.config import Settings
from usersctl.config.providers import ProviderSettings, host_of, table_of
from usersctl.config.values import is_loopback
from usersctl.doctor.installation import Installation, Result, hint, named, ok, problem, warning
from usersctl.models import OAUTH

LOGINS_READ, MANY_LOGINS, SEVERAL_USERS = 200, 10, 3
SET_BASE_URL = "set baseUrl to the address that people type"
NOTHING_LISTENS = {os.strerror(errno.ECONNREFUSED), os.strerror(errno.ENOENT)}


def _is_public(settings: Settings) -> bool:
    return not is_loopback(host_of(settings.base_url))


def _listens_to_others(settings: Settings) -> bool:
    return settings.socket is None and not is_loopback(settings.host)


def base_url(installation: Installation) -> Result:
    settings = installation.settings
    if not _is_public(settings) and _listens_to_others(settings):
        message = f"links in emails lead to {settings.base_url}, but the daemon listens at {settings.host}"
        return warning(message, SET_BASE_URL)
    is_default = installation.configuration.has_default_address and not _is_public(settings)
    if is_default and installation.query(lambda tx: tx.active_admins()):
        message = f"baseUrl is not set: links lead to {settings.base_url}, where tasks need no session"
        return warning(message, SET_BASE_URL)
    return ok(settings.base_url)


def cookie(installation: Installation) -> Result:
    settings = installation.settings
    if _is_public(settings) and not settings.https:
        message = f"passwords and cookies cross the network unencrypted: {settings.base_url} is not https"
        proxy = installation.command("snippet nginx")
        return problem(message, f"set baseUrl to https://, with a proxy in front: {proxy}")
    if settings.https and _listens_to_others(settings):
        message = f"the network can reach {settings.host}:{settings.port} past the proxy that does https"
        return hint(message, 'set server.host to "127.0.0.1", or let a firewall keep others from the port')
    return ok(settings.session_cookie)


def proxies(installation: Installation) -> Result:
    settings = installation.settings
    for network in settings.trusted_proxies:
        if getattr(network, "prefixlen", 1) == 0:
            message = f"server.trustedProxies has {network}, so any client can claim any address"
            return problem(message, "name the proxy's address only")
    if settings.https and not settings.trusted_proxies:
        proxy = "unix" if settings.socket else "127.0.0.1"
        message = "a proxy does https, but none is trusted: all clients share its address and its limits"
        return warning(message, f'set server.trustedProxies to ["{proxy}"], or to its address')
    logins = installation.query(lambda tx: tx.last_logins(LOGINS_READ))
    users, addresses = {user for user, _ in logins}, {address for _, address in logins}
    is_odd = len(logins) >= MANY_LOGINS and len(users) >= SEVERAL_USERS and len(addresses) == 1
    if is_odd and _is_public(settings):
        message = f"the last {len(logins)} logins of {len(users)} users all came from {min(addresses)}"
        return warning(message, "set server.trustedProxies to the proxy's address, unless they do share one")
    return ok(", ".join(map(str, settings.trusted_proxies)) or "none trusted, none needed")


def daemon(installation: Installation) -> Result:
    settings = installation.settings
    where = f"{settings.host}:{settings.port}"
    if settings.socket:
        where = f"unix:{settings.socket}"
    reason = installation.ask_daemon(settings)
    if reason is None:
        return ok(f"ready at {where}")
    if reason in NOTHING_LISTENS:
        mend = "systemctl start usersd" if installation.has_unit else installation.command("serve")
        return warning(f"nothing listens at {where}", mend)
    mend = "journalctl -u usersd -o cat" if installation.has_unit else "see its log"
    return problem(f"the daemon at {where} is not ready: {reason}", mend)


def mail(installation: Installation) -> Result:
    settings = installation.settings
    if settings.mailer_host is None:
        severity = warning if _is_public(settings) else hint
        message = "no mail server: emails stay in the folder mail/ beside the database"
        if installation.is_on_server:
            message = f"no mail server: emails stay in {settings.folder}/mail, of the machine that sends them"
        return severity(message, "set mailer.host")
    if settings.mailer_from is None and not _is_public(settings):
        return warning("most servers reject emails from no-reply@localhost", "set mailer.defaults.from")
    return ok(f"{settings.mailer_host}, as {settings.mailer_from or 'no-reply at the host of baseUrl'}")


def provider(installation: Installation) -> list[Result]:
    settings = installation.settings
    looked = [(each.name, _provider(settings, each)) for each in settings.described_providers]
    return [result._replace(message=named(name, result.message)) for name, result in looked if result]


def _provider(settings: Settings, described: ProviderSettings) -> Result | None:
    table = table_of(described.name)
    secrets = {"clientId": described.client_id, "clientSecret": described.client_secret}
    missing = [name for name, value in secrets.items() if not value]
    if len(missing) == 2 and described.name == OAUTH:
        return None
    if missing:
        return warning(
            f"{table}.{missing[0]} is missing: no sign-in through a provider", f"set {table}.{missing[0]}"
        )
    if described.logo == "microsoft" and not described.trusts_email:
        message = "Microsoft never says whether an address is verified, so that all sign-ins are refused"
        return warning(message, f"read the recipe for Microsoft before you set {table}.trustsEmail")
    where = described.issuer or described.provider
    vouches = "; its sign-ins count as two factors" * described.trusts_factors
    return ok(f"{where}; its callback is {settings.redirect_uri(described)}{vouches}")
