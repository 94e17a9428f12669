"""Identity providers, each behind the same three verbs: OpenID Connect, and GitHub."""

import json
import re
import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from usersctl.clock import Clock
from usersctl.config import Settings
from usersctl.config.values import BadValue, provider_url
from usersctl.oauth.http import HttpClient
from usersctl.oauth.refusals import refused, refused_by_provider

DISCOVERY_KEPT = timedelta(hours=1)


class Profile(NamedTuple):
    """The provider's description of a person."""

    subject: str
    email: str
    email_verified: bool
    name: str | None
    picture: str | None


class Provider(Protocol):
    def authorization_url(self, *, state: str, challenge: str) -> str: ...

    def exchange(self, *, code: str, verifier: str, issuer: str | None) -> str:
        """Returns an access token for the code. `issuer`: the parameter `iss` of the callback."""

    def profile(self, access_token: str) -> Profile: ...


class Endpoints(NamedTuple):
    authorization: str
    token: str
    user_info: str
    issuer: str | None = None
    sends_issuer: bool = False  # every callback must carry `iss`
    secret_in_body: bool = False


@dataclass
class CodeFlow:
    """The authorization code flow with PKCE, as it is at every provider."""

    settings: Settings
    http: HttpClient

    def _authorization_url(self, url: str, state: str, challenge: str) -> str:
        from oauthlib.common import add_params_to_uri

        settings = self.settings
        scopes = settings.oauth_scopes
        if settings.oauth_provider == "github" and "openid" in scopes:
            scopes = ("read:user", "user:email")  # GitHub's names for the default scopes
        parameters = [
            ("response_type", "code"),
            ("client_id", settings.oauth_client_id or ""),
            ("redirect_uri", settings.redirect_uri),
            ("scope", " ".join(scopes)),
            ("state", state),
            ("code_challenge", challenge),
            ("code_challenge_method", "S256"),
        ]
        return str(add_params_to_uri(url, parameters))

    def _exchange(self, url: str, code: str, verifier: str, *, secret_in_body: bool) -> str:
        from oauthlib.oauth2 import OAuth2Error, WebApplicationClient

        settings = self.settings
        identity, secret = settings.oauth_client_id or "", settings.oauth_client_secret or ""
        client = WebApplicationClient(identity)
        parameters = {"code": code, "redirect_uri": settings.redirect_uri, "code_verifier": verifier}
        if secret_in_body:
            body = client.prepare_request_body(**parameters, client_secret=secret)
            answer = self.http.json(url, form=body)
        else:
            body = client.prepare_request_body(**parameters, include_client_id=False)
            answer = self.http.json(url, form=body, basic=(identity, secret))
        if not isinstance(answer, dict):
            raise refused("the provider's answer to the code is not an object")
        try:
            # No scope is passed, because oauthlib raises a Warning where the provider grants another one.
            token = client.parse_request_body_response(json.dumps(answer))["access_token"]
        except OAuth2Error as error:
            reason = f"the provider refused the code: {type(error).__name__}"
            raise refused_by_provider(reason, error.error) from None
        except (Warning, TypeError, ArithmeticError, ValueError, AttributeError) as error:
            raise refused(f"the provider's answer to the code is invalid: {type(error).__name__}") from None
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]{1,8192}", token):
            raise refused("the provider's access token has an invalid form")
        if str(answer.get("token_type", "bearer")).lower() != "bearer":
            raise refused("the provider's access token is not a bearer token")
        return token


@dataclass
class OpenIdProvider(CodeFlow):
    """OpenID Connect, with endpoints from the configuration or else by discovery."""

    now: Clock
    _cached: tuple[datetime, Endpoints] | None = None  # until when, and what
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def authorization_url(self, *, state: str, challenge: str) -> str:
        return self._authorization_url(self.endpoints().authorization, state, challenge)

    def exchange(self, *, code: str, verifier: str, issuer: str | None) -> str:
        endpoints = self.endpoints()
        if issuer is not None and endpoints.issuer is not None and issuer != endpoints.issuer:
            raise refused("the callback comes from another issuer")
        if issuer is None and endpoints.sends_issuer:
            raise refused("the callback does not name its issuer")
        return self._exchange(endpoints.token, code, verifier, secret_in_body=endpoints.secret_in_body)

    def profile(self, access_token: str) -> Profile:
        claims = self.http.json(self.endpoints().user_info, bearer=access_token)
        if not isinstance(claims, dict):
            raise refused("the provider's profile is not an object")
        return Profile(
            _subject(claims.get("sub")),
            _text(claims.get("email")) or "",
            claims.get("email_verified") is True,
            _text(claims.get("name")),
            _text(claims.get("picture")),
        )

    def endpoints(self) -> Endpoints:
        with self._lock:
            if self._cached is not None and self._cached[0] > self.now():
                return self._cached[1]
        endpoints = self._discover()
        with self._lock:
            self._cached = (self.now() + DISCOVERY_KEPT, endpoints)
        return endpoints

    def _discover(self) -> Endpoints:
        settings, issuer = self.settings, self.settings.oauth_issuer
        document: Any = {}
        if issuer is not None:
            configured = issuer.rstrip("/")
            document = self.http.json(f"{configured}/.well-known/openid-configuration")
            issuer = _text(document.get("issuer")) if isinstance(document, dict) else None
            # A slash at the end makes no other issuer, but callbacks carry `iss` exactly as the document has it.
            if issuer is None or issuer.removesuffix("/") != configured:
                raise refused("the discovery document is not that of the issuer")
        methods = document.get("token_endpoint_auth_methods_supported")
        if not isinstance(methods, list):
            methods = []
        return Endpoints(
            settings.oauth_authorization_url or _endpoint(document.get("authorization_endpoint")),
            settings.oauth_token_url or _endpoint(document.get("token_endpoint")),
            settings.oauth_user_info_url or _endpoint(document.get("userinfo_endpoint")),
            issuer,
            document.get("authorization_response_iss_parameter_supported") is True,
            "client_secret_basic" not in methods and "client_secret_post" in methods,
        )


@dataclass
class GitHubProvider(CodeFlow):
    """GitHub, which has no discovery and lists the verified email addresses at an endpoint of their own."""

    def authorization_url(self, *, state: str, challenge: str) -> str:
        url = self.settings.oauth_authorization_url or "https://github.com/login/oauth/authorize"
        return self._authorization_url(url, state, challenge)

    def exchange(self, *, code: str, verifier: str, issuer: str | None) -> str:
        del issuer  # GitHub sends none
        url = self.settings.oauth_token_url or "https://github.com/login/oauth/access_token"
        return self._exchange(url, code, verifier, secret_in_body=True)

    def profile(self, access_token: str) -> Profile:
        url = self.settings.oauth_user_info_url or "https://api.github.com/user"
        user = self.http.json(url, bearer=access_token)
        emails = self.http.json(f"{url}/emails?per_page=100", bearer=access_token)
        if not isinstance(user, dict) or not isinstance(emails, list):
            raise refused("the provider's profile is not an object")
        objects = (email for email in emails if isinstance(email, dict))
        primary = next((email for email in objects if email.get("primary") is True), {})
        number = user.get("id")
        if not isinstance(number, int) or isinstance(number, bool):
            number = ""  # no subject
        return Profile(
            _subject(str(number)),
            _text(primary.get("email")) or "",
            primary.get("verified") is True,
            _text(user.get("name")) or _text(user.get("login")),
            _text(user.get("avatar_url")),
        )


def make_provider(settings: Settings, http: HttpClient, now: Clock) -> Provider:
    if settings.oauth_provider == "github":
        return GitHubProvider(settings, http)
    return OpenIdProvider(settings, http, now)


def _endpoint(url: Any) -> str:
    try:
        return provider_url(url)
    except BadValue as problem:
        raise refused(f"an endpoint of the discovery document {problem}") from None


def _subject(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[ -~]{1,255}", value):
        raise refused("the provider's profile has no usable id")
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
