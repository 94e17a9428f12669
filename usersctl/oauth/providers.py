"""An identity provider behind three verbs: OpenID Connect or GitHub, asked within limits of time and size."""

import json
import re
import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from usersctl.clock import Clock
from usersctl.config import Settings
from usersctl.config.values import Bad, provider_url
from usersctl.oauth.http import Http
from usersctl.oauth.refusals import refused, refused_by_provider

DISCOVERY_KEPT = timedelta(hours=1)


class Profile(NamedTuple):
    """What a provider says of a person."""

    subject: str
    email: str
    email_verified: bool
    name: str | None
    picture: str | None


class Provider(Protocol):
    def authorization_url(self, *, state: str, challenge: str) -> str: ...

    def exchange(self, *, code: str, verifier: str, issuer: str | None) -> str:
        """An access token. `issuer`: what the callback said of itself."""
        ...

    def profile(self, access_token: str) -> Profile: ...


class Endpoints(NamedTuple):
    authorization: str
    token: str
    user_info: str
    issuer: str | None = None
    names_itself: bool = False  # the callback must say who it comes from
    secret_in_body: bool = False


@dataclass
class OpenIdProvider:
    """OpenID Connect: endpoints by discovery, or as the configuration says."""

    settings: Settings
    http: "Http"
    now: Clock
    _found: tuple[datetime, Endpoints] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def authorization_url(self, *, state: str, challenge: str) -> str:
        return _authorization_url(self.settings, self.endpoints().authorization, state, challenge)

    def exchange(self, *, code: str, verifier: str, issuer: str | None) -> str:
        endpoints = self.endpoints()
        if issuer is not None and endpoints.issuer is not None and issuer != endpoints.issuer:
            raise refused("the callback comes from another issuer")
        if issuer is None and endpoints.names_itself:
            raise refused("the callback does not say who it comes from")
        return _exchange(
            self.settings,
            self.http,
            endpoints.token,
            code=code,
            verifier=verifier,
            secret_in_body=endpoints.secret_in_body,
        )

    def profile(self, access_token: str) -> Profile:
        told = self.http.json("GET", self.endpoints().user_info, bearer=access_token)
        if not isinstance(told, dict):
            raise refused("the provider's profile is no object")
        return Profile(
            _subject(told.get("sub")),
            _text(told.get("email")) or "",
            told.get("email_verified") is True,
            _text(told.get("name")),
            _text(told.get("picture")),
        )

    def endpoints(self) -> Endpoints:
        with self._lock:
            if self._found is not None and self._found[0] > self.now():
                return self._found[1]
        found = self._discovered()
        with self._lock:
            self._found = (self.now() + DISCOVERY_KEPT, found)
        return found

    def _discovered(self) -> Endpoints:
        settings, issuer = self.settings, self.settings.oauth_issuer
        told: Any = {}
        if issuer is not None:
            asked = issuer.rstrip("/")
            told = self.http.json("GET", f"{asked}/.well-known/openid-configuration")
            issuer = _text(told.get("issuer")) if isinstance(told, dict) else None
            # With a slash at its end or without, it is the same document; `iss` will be as it says there.
            if issuer is None or issuer.removesuffix("/") != asked:
                raise refused("the discovery document is not that of the issuer")
        methods = told.get("token_endpoint_auth_methods_supported")
        if not isinstance(methods, list):
            methods = []
        return Endpoints(
            settings.oauth_authorization_url or _endpoint(told.get("authorization_endpoint")),
            settings.oauth_token_url or _endpoint(told.get("token_endpoint")),
            settings.oauth_user_info_url or _endpoint(told.get("userinfo_endpoint")),
            issuer,
            told.get("authorization_response_iss_parameter_supported") is True,
            "client_secret_basic" not in methods and "client_secret_post" in methods,
        )


@dataclass
class GitHubProvider:
    """GitHub has no discovery, and tells the verified address at another place."""

    settings: Settings
    http: "Http"

    def authorization_url(self, *, state: str, challenge: str) -> str:
        url = self.settings.oauth_authorization_url or "https://github.com/login/oauth/authorize"
        return _authorization_url(self.settings, url, state, challenge)

    def exchange(self, *, code: str, verifier: str, issuer: str | None) -> str:
        del issuer  # GitHub has none
        url = self.settings.oauth_token_url or "https://github.com/login/oauth/access_token"
        return _exchange(
            self.settings,
            self.http,
            url,
            code=code,
            verifier=verifier,
            secret_in_body=True,
        )

    def profile(self, access_token: str) -> Profile:
        url = self.settings.oauth_user_info_url or "https://api.github.com/user"
        told = self.http.json("GET", url, bearer=access_token)
        addresses = self.http.json("GET", f"{url}/emails?per_page=100", bearer=access_token)
        if not isinstance(told, dict) or not isinstance(addresses, list):
            raise refused("the provider's profile is no object")
        primary = next(
            (each for each in addresses if isinstance(each, dict) and each.get("primary") is True), {}
        )
        number = told.get("id")
        return Profile(
            _subject(str(number) if isinstance(number, int) and not isinstance(number, bool) else None),
            _text(primary.get("email")) or "",
            primary.get("verified") is True,
            _text(told.get("name")) or _text(told.get("login")),
            _text(told.get("avatar_url")),
        )


def make_provider(settings: Settings, http: "Http", now: Clock) -> Provider:
    if settings.oauth_provider == "github":
        return GitHubProvider(settings, http)
    return OpenIdProvider(settings, http, now)


def _authorization_url(settings: Settings, url: str, state: str, challenge: str) -> str:
    from oauthlib.common import add_params_to_uri

    scopes = settings.oauth_scopes
    if settings.oauth_provider == "github" and "openid" in scopes:
        scopes = ("read:user", "user:email")  # what the default asks for, in GitHub's words
    asked = [
        ("response_type", "code"),
        ("client_id", settings.oauth_client_id or ""),
        ("redirect_uri", settings.redirect_uri),
        ("scope", " ".join(scopes)),
        ("state", state),
        ("code_challenge", challenge),
        ("code_challenge_method", "S256"),
    ]
    made: str = add_params_to_uri(url, asked)
    return made


def _exchange(
    settings: Settings,
    http: "Http",
    url: str,
    *,
    code: str,
    verifier: str,
    secret_in_body: bool,
) -> str:
    from oauthlib.oauth2 import OAuth2Error, WebApplicationClient

    identity, secret = settings.oauth_client_id or "", settings.oauth_client_secret or ""
    client = WebApplicationClient(identity)
    more = {"client_secret": secret} if secret_in_body else {}
    body = client.prepare_request_body(
        code=code,
        redirect_uri=settings.redirect_uri,
        code_verifier=verifier,
        include_client_id=secret_in_body,
        **more,
    )
    told = http.json("POST", url, form=body, basic=None if secret_in_body else (identity, secret))
    if not isinstance(told, dict):
        raise refused("the provider's answer to the code is no object")
    try:
        # Without a scope: it warns by raising where the provider grants another one.
        token = client.parse_request_body_response(json.dumps(told))["access_token"]
    except OAuth2Error as error:
        raise refused_by_provider(
            f"the provider refused the code: {type(error).__name__}", error.error
        ) from None
    except (Warning, TypeError, ArithmeticError, ValueError, AttributeError) as error:
        raise refused(f"the provider's answer to the code is odd: {type(error).__name__}") from None
    if not isinstance(token, str) or not re.fullmatch(r"[!-~]{1,8192}", token):
        raise refused("the provider's token is no token")
    if str(told.get("token_type", "bearer")).lower() != "bearer":
        raise refused("the provider's token is of a kind that we cannot use")
    return token


def _endpoint(url: Any) -> str:
    try:
        return provider_url(url)
    except Bad as problem:
        raise refused(f"an endpoint of the discovery document {problem}") from None


def _subject(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[ -~]{1,255}", value):
        raise refused("the provider does not say who it is")
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
