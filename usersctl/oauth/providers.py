"""Identity providers, each behind the same three verbs: OpenID Connect, and GitHub."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from usersctl.clock import Clock
from usersctl.config.providers import ProviderSettings, table_of
from usersctl.config.values import BadValue, provider_url
from usersctl.errors import SignInRefused
from usersctl.named import NamedTuple
from usersctl.oauth.http import HttpClient
from usersctl.oauth.id_token import ALGORITHMS, Claims, Expected, checked
from usersctl.oauth.refusals import NOT_CONFIGURED, refused, refused_by_provider, shown

DISCOVERY_KEPT = timedelta(hours=1)
DOUBTED_KEPT = timedelta(minutes=1)  # after a failure


class Profile(NamedTuple):
    """The provider's description of a person."""

    subject: str
    email: str
    email_verified: bool
    name: str | None
    picture: str | None
    auth_time: str | None = None  # when, and
    amr: str | None = None  # how the provider signed them in, if it says so
    unverified_because: str = "the provider has not verified the address"
    says_unverified: bool = True  # False: it says nothing, or nothing that counts


class Grant(NamedTuple):
    """What the provider gives for a code."""

    access_token: str
    claims: Claims | None = None  # of the ID token, if one came


class Provider(Protocol):
    def authorization_url(self, *, state: str, nonce: str, challenge: str) -> str: ...

    def exchange(self, *, code: str, verifier: str, nonce: str, issuer: str | None) -> Grant:
        """`issuer`: the parameter `iss` of the callback."""

    def profile(self, grant: Grant) -> Profile: ...


class Endpoints(NamedTuple):
    authorization: str
    token: str
    user_info: str
    issuer: str | None  # None: without discovery
    sends_issuer: bool  # every callback must carry `iss`
    client_methods: tuple[str, ...]  # by which a client may authenticate; none: by HTTP Basic
    keys: str | None
    algorithms: tuple[str, ...]  # of ID tokens

    @property
    def secret_in_body(self) -> bool:
        return (
            "client_secret_basic" not in self.client_methods and "client_secret_post" in self.client_methods
        )

    @property
    def shown_methods(self) -> str:
        return shown(", ".join(self.client_methods))

    @property
    def takes_secret(self) -> bool:
        return not self.client_methods or not {"client_secret_basic", "client_secret_post"}.isdisjoint(
            self.client_methods
        )


class CodeFlow:
    """The authorization code flow with PKCE, as it is at every provider."""

    def __init__(self, settings: ProviderSettings, redirect_uri: str, http: HttpClient) -> None:
        self.settings, self.redirect_uri, self.http = settings, redirect_uri, http

    def _authorization_url(self, url: str, state: str, challenge: str, *more: tuple[str, str]) -> str:
        from oauthlib.common import add_params_to_uri

        settings = self.settings
        parameters = [
            ("response_type", "code"),
            ("client_id", settings.client_id or ""),
            ("redirect_uri", self.redirect_uri),
            ("scope", " ".join(self._scopes())),
            ("state", state),
            ("code_challenge", challenge),
            ("code_challenge_method", "S256"),
            *more,
        ]
        return str(add_params_to_uri(url, parameters))

    def _scopes(self) -> tuple[str, ...]:
        return self.settings.scopes

    def _exchange(self, url: str, code: str, verifier: str, *, secret_in_body: bool) -> tuple[str, Any]:
        """Returns the access token and the ID token, which is not checked yet."""
        from oauthlib.oauth2 import OAuth2Error, WebApplicationClient

        settings = self.settings
        identity, secret = settings.client_id or "", settings.client_secret or ""
        client = WebApplicationClient(identity)
        parameters = {"code": code, "redirect_uri": self.redirect_uri, "code_verifier": verifier}
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
            raise refused_by_provider(
                "the provider refuses the code:", error.error, error.description
            ) from None
        except (Warning, TypeError, ArithmeticError, ValueError, AttributeError, RecursionError) as error:
            raise refused(f"the provider's answer to the code is invalid: {type(error).__name__}") from None
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]{1,8192}", token):
            raise refused("the provider's access token has an invalid form")
        if str(answer.get("token_type", "bearer")).lower() != "bearer":
            raise refused("the provider's access token is not a bearer token")
        return token, answer.get("id_token")


class OpenIdProvider(CodeFlow):
    """OpenID Connect, with endpoints from the configuration or else by discovery."""

    def __init__(self, settings: ProviderSettings, redirect_uri: str, http: HttpClient, now: Clock) -> None:
        super().__init__(settings, redirect_uri, http)
        self.now = now
        self._cached: tuple[datetime, Endpoints] | None = None  # since when, and what
        self._kept = DISCOVERY_KEPT
        self._keys: list[dict[str, Any]] | None = None  # cached as long as that
        self._lock = threading.Lock()

    def authorization_url(self, *, state: str, nonce: str, challenge: str) -> str:
        more = [("nonce", nonce)] if self._asks_for_id_token else []
        return self._authorization_url(self.endpoints().authorization, state, challenge, *more)

    @property
    def _asks_for_id_token(self) -> bool:
        return "openid" in self.settings.scopes

    def exchange(self, *, code: str, verifier: str, nonce: str, issuer: str | None) -> Grant:
        with self._doubting():
            return self._exchanged(code, verifier, nonce, issuer)

    def _exchanged(self, code: str, verifier: str, nonce: str, issuer: str | None) -> Grant:
        endpoints = self.endpoints()
        if issuer is not None and endpoints.issuer is not None and issuer != endpoints.issuer:
            raise refused("the callback comes from another issuer")
        if issuer is None and endpoints.sends_issuer:
            raise refused("the callback does not name its issuer")
        try:
            access_token, id_token = self._exchange(
                endpoints.token, code, verifier, secret_in_body=endpoints.secret_in_body
            )
        except SignInRefused as refusal:
            if refusal.reason != NOT_CONFIGURED:
                raise
            raise SignInRefused(NOT_CONFIGURED, f"{refusal}{self._why_no_client(endpoints)}") from None
        if id_token is None:
            return Grant(access_token)
        expected = Expected(
            client_id=self.settings.client_id or "",
            now=self.now(),
            nonce=nonce if self._asks_for_id_token else None,
            issuer=endpoints.issuer,
            algorithms=endpoints.algorithms,
        )
        find_keys = partial(self._find_keys, endpoints.keys) if endpoints.issuer else None
        return Grant(access_token, checked(id_token, expected, find_keys))

    def _why_no_client(self, endpoints: Endpoints) -> str:
        """Why a provider may not accept the client although id and secret are right, for the log."""
        if not endpoints.takes_secret:
            return f"; it announces {endpoints.shown_methods}, and not the client secret"
        if endpoints.secret_in_body:
            return ""
        why = ""
        if "client_secret_post" in endpoints.client_methods:
            why += "; the client has to be registered there for client_secret_basic"
        if not re.fullmatch(r"[A-Za-z0-9._~-]+", f"{self.settings.client_id}{self.settings.client_secret}"):
            why += "; some providers misread an id or secret with other characters than A-Za-z0-9._~-"
        return why

    def profile(self, grant: Grant) -> Profile:
        with self._doubting():
            said = self.http.json(self.endpoints().user_info, bearer=grant.access_token)
        if not isinstance(said, dict):
            raise refused("the provider's profile is not an object")
        profile = Profile(
            _subject(said.get("sub")),
            _text(said.get("email")) or "",
            said.get("email_verified", self.settings.trusts_email) is True,
            _text(said.get("name")),
            _text(said.get("picture")),
            unverified_because=self._unverified_because(said),
            says_unverified=said.get("email_verified") is False,
        )
        if grant.claims is None:
            return profile
        if grant.claims.subject != profile.subject:
            raise refused("the ID token and the profile are of different persons")
        return profile._replace(auth_time=grant.claims.auth_time, amr=grant.claims.amr)

    def _unverified_because(self, said: dict[str, Any]) -> str:
        if "email_verified" not in said:
            key = f"{table_of(self.settings.name)}.trustsEmail"
            return f"the provider does not say whether the address is verified, and {key} is not set"
        return f"the provider says email_verified: {json.dumps(said['email_verified'])[:100]}, which has to be true"

    def endpoints(self) -> Endpoints:
        with self._lock:
            # Not if it is from the future: the clock was set back.
            if self._cached is not None and timedelta(0) <= self.now() - self._cached[0] < self._kept:
                return self._cached[1]
        endpoints = self._discover()
        with self._lock:
            self._cached, self._kept, self._keys = (self.now(), endpoints), DISCOVERY_KEPT, None
        return endpoints

    @contextmanager
    def _doubting(self) -> Iterator[None]:
        """If a request fails, its endpoint may have moved. Anybody can make one fail, with a code of their own."""
        try:
            yield
        except SignInRefused:
            self._kept = DOUBTED_KEPT
            raise

    def _find_keys(self, url: str | None, *, fresh: bool) -> list[dict[str, Any]]:
        known = self._keys  # once, because another thread may empty it
        if known is not None and not fresh:
            return known
        if url is None:
            raise refused("the discovery document has no jwks_uri, so the ID token cannot be checked")
        document = self.http.json(url)
        keys = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(keys, list):
            raise refused("the provider's keys are not a JWK set")
        self._keys = found = [key for key in keys if isinstance(key, dict)]
        return found

    def _discover(self) -> Endpoints:
        settings = self.settings
        document = self._document() if settings.issuer is not None else {}
        endpoint = partial(_endpoint, document, settings.issuer)
        methods = _texts(document.get("token_endpoint_auth_methods_supported"))
        announced = document.get("id_token_signing_alg_values_supported", list(ALGORITHMS))
        return Endpoints(
            authorization=settings.authorization_url or endpoint("authorization_endpoint"),
            token=settings.token_url or endpoint("token_endpoint"),
            user_info=settings.user_info_url or endpoint("userinfo_endpoint"),
            issuer=settings.issuer,
            sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
            client_methods=tuple(methods),
            keys=endpoint("jwks_uri") if "jwks_uri" in document else None,
            algorithms=tuple(name for name in ALGORITHMS if name in _texts(announced)),
        )

    def _document(self) -> dict[str, Any]:
        """The discovery document of the configured issuer, which must be called exactly so (Discovery 4.3)."""
        issuer = self.settings.issuer or ""
        document = self.http.json(f"{issuer.removesuffix('/')}/.well-known/openid-configuration")
        name = document.get("issuer") if isinstance(document, dict) else None
        if name != issuer:
            announced = str(name)[:200]
            # Microsoft's "common" and "organizations" are of all tenants, and no issuer of ID tokens.
            tenant = ", with the id of your tenant in place of the braces" if "{" in announced else ""
            key = f"{table_of(self.settings.name)}.issuer"
            raise refused(f"the issuer there is called {announced!r}, and {key} must be exactly that{tenant}")
        return dict(document)


class GitHubProvider(CodeFlow):
    """GitHub, which has no discovery and lists the verified email addresses at an endpoint of their own."""

    def authorization_url(self, *, state: str, nonce: str, challenge: str) -> str:
        del nonce  # GitHub sends no ID tokens,
        url = self.settings.authorization_url or "https://github.com/login/oauth/authorize"
        return self._authorization_url(url, state, challenge)

    def _scopes(self) -> tuple[str, ...]:
        if "openid" in self.settings.scopes:
            return "read:user", "user:email"  # GitHub's names for the default scopes
        return self.settings.scopes

    def exchange(self, *, code: str, verifier: str, nonce: str, issuer: str | None) -> Grant:
        del nonce, issuer  # and no `iss`
        url = self.settings.token_url or "https://github.com/login/oauth/access_token"
        return Grant(self._exchange(url, code, verifier, secret_in_body=True)[0])

    def profile(self, grant: Grant) -> Profile:
        access_token = grant.access_token
        url = self.settings.user_info_url or "https://api.github.com/user"
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


def make_provider(settings: ProviderSettings, redirect_uri: str, http: HttpClient, now: Clock) -> Provider:
    if settings.provider == "github":
        return GitHubProvider(settings, redirect_uri, http)
    return OpenIdProvider(settings, redirect_uri, http, now)


def _endpoint(document: dict[str, Any], issuer: str | None, name: str) -> str:
    """A URL of the discovery document. Behind an https issuer it may not be http, not even one of this machine."""
    if name not in document:
        raise refused(f"the discovery document has no {name}")
    try:
        url = provider_url(document[name])
    except BadValue as problem:
        raise refused(f"{name} of the discovery document {problem}") from None
    if urlsplit(issuer or "").scheme == "https" and urlsplit(url).scheme != "https":
        raise refused(f"{name} of the discovery document is http, and its issuer https")
    return url


def _subject(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[ -~]{1,255}", value):
        raise refused("the provider's profile has no usable id")
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
