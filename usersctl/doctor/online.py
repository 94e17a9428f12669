"""Checks over the network: the mail server, the identity provider, and baseUrl."""

import shlex
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from usersctl.config.providers import table_of
from usersctl.config.values import is_loopback
from usersctl.doctor.installation import (
    Installation,
    Result,
    UncheckedError,
    for_each_provider,
    ok,
    problem,
    warning,
)

if TYPE_CHECKING:  # each check imports what it needs, because most calls of doctor are without the network
    from usersctl.config.providers import ProviderSettings
    from usersctl.oauth.http import Answer, HttpClient
    from usersctl.oauth.providers import Endpoints


def base_url_reachable(installation: Installation) -> Result:
    base_url = installation.settings.base_url
    url = f"{base_url}/api/users/me"
    mend = "check baseUrl, its name in DNS, and the certificate"
    answer = installation.ask_web(lambda http: http.peek(url), mend=mend)
    if answer.status == 401 and b'"statusMessage"' in answer.body:
        return ok(f"{base_url} leads to the daemon")
    message = (
        f"{url} answers {answer.status}, not 401: no daemon is behind it, or the proxy keeps /api/users/"
    )
    return problem(message, f"curl -i {shlex.quote(url)}")


def mail_server(installation: Installation) -> Result | None:
    from usersctl.mail.smtp import Step

    if installation.settings.mailer_host is None:
        return None
    passed, error = installation.mail_probe
    if Step.GREETED in passed:
        return ok("it answers")
    return problem(str(error), "check host, port and secure of mailer")


def mail_starttls(installation: Installation) -> Result | None:
    from usersctl.mail.smtp import Step

    settings = installation.settings
    if settings.mailer_host is None:
        return None
    passed, error = installation.mail_probe
    if Step.GREETED not in passed:
        raise UncheckedError("the mail server does not answer")
    if Step.ENCRYPTED in passed and settings.mailer_secure:
        return ok("TLS from the start")
    if Step.ENCRYPTED in passed:
        return ok("STARTTLS, with a valid certificate")
    if Step.IN_CLEAR not in passed:
        return problem(str(error), "check the server's certificate and its name, or mailer.port")
    if is_loopback(settings.mailer_host):
        return ok("not offered, and not needed on this machine")
    message = f"{settings.mailer_host} offers no STARTTLS: emails, with their links, travel unencrypted"
    return warning(message, "set mailer.secure and its port, or ask the operator of the server")


def mail_login(installation: Installation) -> Result | None:
    from usersctl.mail.smtp import Step

    settings = installation.settings
    if settings.mailer_host is None or settings.mailer_user is None:
        return None
    passed = installation.mail_probe.passed
    if Step.LOGGED_IN in passed:
        return ok(f"as {settings.mailer_user}")
    if Step.GREETED not in passed:
        raise UncheckedError("the mail server does not answer")
    if Step.ENCRYPTED not in passed and Step.IN_CLEAR not in passed:
        raise UncheckedError("the connection is not encrypted, and without that no password is sent")
    return problem(f"{installation.mail_probe.error}", "check mailer.auth.user and mailer.auth.pass")


@for_each_provider
def provider_discovery(installation: Installation, provider: "ProviderSettings") -> Result | None:
    from usersctl.oauth.providers import OpenIdProvider

    if provider.issuer is None or provider.provider != "oidc":
        return None

    def discover(http: "HttpClient") -> "Endpoints":
        callback = installation.settings.redirect_uri(provider)
        return OpenIdProvider(provider, callback, http, installation.now).endpoints()

    endpoints = installation.ask_web(discover, mend=f"check {table_of(provider.name)}.issuer")
    if not endpoints.algorithms and "openid" in provider.scopes:
        message = "it signs ID tokens in no way that proves their origin, so that sign-ins fail"
        return problem(message, "let the provider sign with RS256 or ES256, with a signing key of its own")
    if not endpoints.takes_secret:
        message = f"it announces {endpoints.shown_methods}, and not the client secret, so that sign-ins fail"
        return problem(message, "let the provider accept client_secret_basic or client_secret_post")
    return ok(f"sign-in at {endpoints.authorization}")


@for_each_provider
def provider_redirect(installation: Installation, provider: "ProviderSettings") -> Result | None:
    from usersctl.oauth.providers import make_provider
    from usersctl.secrets import challenge_of, new_token

    table, callback = table_of(provider.name), installation.settings.redirect_uri(provider)

    def begin_sign_in(http: "HttpClient") -> "Answer":
        made = make_provider(provider, callback, http, installation.now)
        challenge = challenge_of(new_token())
        url = made.authorization_url(state=new_token(), nonce=new_token(), challenge=challenge)
        return http.peek(url)

    answer = installation.ask_web(begin_sign_in, mend=f"check {table}")
    if answer.status >= 400:
        mend = f"register the callback {callback} there, and check {table}.clientId"
        message = f"the provider answers {answer.status}: it does not know the client, or the callback"
        return problem(message, mend)
    target = answer.headers.get("Location", "")
    error = _error_in(target) if target.startswith(callback) else None
    if error is not None:
        mend = f"check {table}.scopes, and what the provider asks of this client"
        return problem(f"the provider refuses each sign-in: {error}", mend)
    return ok(f"the provider accepts a sign-in; {callback} has to be registered there")


def _error_in(callback: str) -> str | None:
    """Of a callback that the provider sends a browser to at once; None if it has none."""
    from usersctl.oauth.refusals import in_its_words

    query = dict(parse_qsl(urlsplit(callback).query))
    return in_its_words(query["error"], query.get("error_description")) if "error" in query else None
