"""What only the network can tell: the mail server, the identity provider, and the way in from outside."""

import shlex

from usersctl.config.values import is_loopback
from usersctl.doctor.case import Case, UncheckedError, Verdict, ok, problem, warning
from usersctl.mail.smtp import Step
from usersctl.oauth.http import HttpClient
from usersctl.oauth.providers import OpenIdProvider, make_provider
from usersctl.secrets import challenge_of, new_token


def reachable(case: Case) -> Verdict:
    url = f"{case.settings.base_url}/api/users/me"
    status, body = case.ask_web(
        lambda http: http.peek(url), mend="check baseUrl, its name in DNS, and the certificate"
    )
    if status == 401 and b'"statusMessage"' in body:
        return ok(f"{case.settings.base_url} leads to the daemon")
    return problem(
        f"{url} answers {status}, and the daemon would say 401: is it this service, and does the proxy pass on"
        " /api/users/?",
        f"curl -i {shlex.quote(url)}",
    )


def mail_server(case: Case) -> Verdict | None:
    if case.settings.mailer_host is None:
        return None
    if Step.GREETED in case.probe.passed:
        return ok("it answers")
    return problem(
        f"{case.settings.mailer_host}: {case.probe.error}", "check mailer.host, mailer.port and mailer.secure"
    )


def mail_starttls(case: Case) -> Verdict | None:
    settings = case.settings
    if settings.mailer_host is None:
        return None
    if Step.GREETED not in case.probe.passed:
        raise UncheckedError("the mail server does not answer")
    if Step.ENCRYPTED in case.probe.passed:
        return ok(
            "TLS from the start" if settings.mailer_secure else "STARTTLS, with a certificate that holds"
        )
    if Step.IN_CLEAR not in case.probe.passed:
        return problem(f"{case.probe.error}", "check the server's certificate and its name, or mailer.port")
    if is_loopback(settings.mailer_host):
        return ok("not offered, and not needed on this machine")
    return warning(
        f"{settings.mailer_host} offers no STARTTLS: letters, with their links, travel in clear",
        "set mailer.secure and its port, or ask whoever runs the server",
    )


def mail_login(case: Case) -> Verdict | None:
    if case.settings.mailer_host is None or case.settings.mailer_user is None:
        return None
    if Step.LOGGED_IN in case.probe.passed:
        return ok(f"as {case.settings.mailer_user}")
    if Step.GREETED not in case.probe.passed:
        raise UncheckedError("the mail server does not answer")
    if not {Step.ENCRYPTED, Step.IN_CLEAR} & set(case.probe.passed):
        raise UncheckedError("there is no encryption, and the password is not sent without")
    return problem(f"{case.probe.error}", "check mailer.auth.user and mailer.auth.pass")


def provider_discovery(case: Case) -> Verdict | None:
    settings = case.settings
    if not settings.has_provider or settings.oauth_issuer is None:
        return None
    found = case.ask_web(
        lambda http: OpenIdProvider(settings, http, case.now).endpoints(), mend="check auth.oauth.issuer"
    )
    return ok(f"sign-in at {found.authorization}")


def provider_redirect(case: Case) -> Verdict | None:
    settings, uri = case.settings, case.settings.redirect_uri
    if not settings.has_provider:
        return None

    def set_out(http: HttpClient) -> int:
        provider = make_provider(settings, http, case.now)
        url = provider.authorization_url(state=new_token(), challenge=challenge_of(new_token()))
        return http.peek(url)[0]

    status = case.ask_web(set_out, mend="check auth.oauth")
    if status >= 400:
        return problem(
            f"the provider answers {status} to whoever sets out: it does not know the client, or the callback",
            f"register the callback {uri} there, and check auth.oauth.clientId",
        )
    return ok(f"the provider lets people set out; {uri} has to be registered there")
