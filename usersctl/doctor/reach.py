"""How people, letters and the provider reach this installation, as the settings have it; and whether it listens."""

import errno
import os
from urllib.parse import urlsplit

from usersctl.config import Settings
from usersctl.config.values import is_loopback
from usersctl.doctor.case import Case, Verdict, hint, ok, problem, warning

LOGINS_LOOKED_AT, FEW_LOGINS, FEW_PEOPLE = 200, 10, 3
NOBODY_LISTENS = {os.strerror(errno.ECONNREFUSED), os.strerror(errno.ENOENT)}


def _is_public(settings: Settings) -> bool:
    return not is_loopback(urlsplit(settings.base_url).hostname or "")


def _listens_to_others(settings: Settings) -> bool:
    return settings.socket is None and not is_loopback(settings.host)


def base_url(case: Case) -> Verdict:
    settings = case.settings
    if not _is_public(settings) and _listens_to_others(settings):
        return warning(
            f"links in letters lead to {settings.base_url}, and the daemon listens at {settings.host}",
            "set baseUrl to what people type",
        )
    return ok(settings.base_url)


def cookie(case: Case) -> Verdict:
    settings = case.settings
    if _is_public(settings) and not settings.https:
        return problem(
            f"passwords and cookies cross the network in clear, as {settings.base_url} is no https",
            "set baseUrl to https://, with a proxy in front: " + case.command("snippet nginx"),
        )
    if settings.https and _listens_to_others(settings):
        return hint(
            f"the network reaches {settings.host}:{settings.port} past the proxy that does https",
            'set server.host to "127.0.0.1", or let a firewall keep others from the port',
        )
    return ok(f"{'__Host-' * settings.https}{settings.cookie_name}")


def proxies(case: Case) -> Verdict:
    settings = case.settings
    for each in settings.trusted_proxies:
        if getattr(each, "prefixlen", 1) == 0:
            return problem(
                f"server.trustedProxies has {each}: anybody may claim any address",
                "name the proxy's address only",
            )
    if settings.https and not settings.trusted_proxies:
        return warning(
            "https is done by a proxy, and none is trusted: all visitors have its address, and share its limits",
            f'set server.trustedProxies to ["{"unix" if settings.socket else "127.0.0.1"}"], or to its address',
        )
    logins = case.ask(lambda tx: tx.last_logins(LOGINS_LOOKED_AT))
    people, addresses = {user for user, _ in logins}, {address for _, address in logins}
    if (
        len(logins) >= FEW_LOGINS
        and len(people) >= FEW_PEOPLE
        and len(addresses) == 1
        and _is_public(settings)
    ):
        return warning(
            f"the last {len(logins)} logins of {len(people)} people all came from {min(addresses)}",
            "set server.trustedProxies to the proxy's address, unless they do share one",
        )
    return ok(", ".join(map(str, settings.trusted_proxies)) or "none trusted, none needed")


def daemon(case: Case) -> Verdict:
    settings = case.settings
    where = f"unix:{settings.socket}" if settings.socket else f"{settings.host}:{settings.port}"
    said = case.ask_daemon(settings)
    if said is None:
        return ok(f"ready at {where}")
    if said in NOBODY_LISTENS:
        return warning(f"nothing listens at {where}", "systemctl start usersd")
    return problem(
        f"{where} does not answer as a daemon that is ready: {said}", "journalctl -u usersd -o cat"
    )


def mail(case: Case) -> Verdict:
    settings = case.settings
    if settings.mailer_host is None:
        told = "no mail server: letters stay in the folder mail/ beside the database"
        mend = "set mailer.host"
        return warning(told, mend) if _is_public(settings) else hint(told, mend)
    if settings.mailer_from is None and not _is_public(settings):
        return warning(
            "letters come from no-reply@localhost, which most servers refuse", "set mailer.defaults.from"
        )
    return ok(f"{settings.mailer_host}, as {settings.mailer_from or 'no-reply at the host of baseUrl'}")


def provider(case: Case) -> Verdict | None:
    settings = case.settings
    if bool(settings.oauth_client_id) != bool(settings.oauth_client_secret):
        missing = "clientSecret" if settings.oauth_client_id else "clientId"
        return warning(
            f"auth.oauth.{missing} is missing: no sign-in through a provider", f"set auth.oauth.{missing}"
        )
    if not settings.oauth_client_id:
        return None
    return ok(f"{settings.oauth_issuer or settings.oauth_provider}; its callback is {settings.redirect_uri}")
