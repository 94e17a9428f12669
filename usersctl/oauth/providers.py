"""An identity provider behind three verbs: OpenID Connect or GitHub, asked within limits of time and size."""

import json
import re
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from usersctl.clock import Clock
from usersctl.config.settings import Bad, Settings, provider_url
from usersctl.errors import SignInRefused

WHOLE = 9.0  # seconds for all that one sign-in asks, whatever the other side does: it is answered within ten
EACH_STEP = 5.0
MOST_BYTES = 256 * 1024
A_LOOK = 4096
DISCOVERY_KEPT = timedelta(hours=1)

FAILED, NOT_CONFIGURED = "oauth_failed", "oauth_not_configured"

# What a provider calls a client id or secret that it does not take.
WRONG_CLIENT = ("invalid_client", "unauthorized_client", "incorrect_client_credentials")

T = TypeVar("T")


def refused(why: str) -> SignInRefused:
    """`why` is for the log; the browser learns the code only."""
    return SignInRefused(FAILED, why)


class Profile(NamedTuple):
    """What a provider says of a person."""

    subject: str
    email: str
    email_verified: bool
    name: str | None
    picture: str | None


class Provider(Protocol):
    def authorization_url(self, *, redirect_uri: str, state: str, challenge: str) -> str: ...

    def exchange(self, *, code: str, redirect_uri: str, verifier: str, issuer: str | None) -> str:
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

    def authorization_url(self, *, redirect_uri: str, state: str, challenge: str) -> str:
        return _authorization_url(
            self.settings, self.endpoints().authorization, redirect_uri, state, challenge
        )

    def exchange(self, *, code: str, redirect_uri: str, verifier: str, issuer: str | None) -> str:
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
            redirect_uri=redirect_uri,
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

    def authorization_url(self, *, redirect_uri: str, state: str, challenge: str) -> str:
        url = self.settings.oauth_authorization_url or "https://github.com/login/oauth/authorize"
        return _authorization_url(self.settings, url, redirect_uri, state, challenge)

    def exchange(self, *, code: str, redirect_uri: str, verifier: str, issuer: str | None) -> str:
        del issuer  # GitHub has none
        url = self.settings.oauth_token_url or "https://github.com/login/oauth/access_token"
        return _exchange(
            self.settings,
            self.http,
            url,
            code=code,
            redirect_uri=redirect_uri,
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


def _authorization_url(settings: Settings, url: str, redirect_uri: str, state: str, challenge: str) -> str:
    from oauthlib.common import add_params_to_uri

    scopes = settings.oauth_scopes
    if settings.oauth_provider == "github" and "openid" in scopes:
        scopes = ("read:user", "user:email")  # what the default asks for, in GitHub's words
    asked = [
        ("response_type", "code"),
        ("client_id", settings.oauth_client_id or ""),
        ("redirect_uri", redirect_uri),
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
    redirect_uri: str,
    verifier: str,
    secret_in_body: bool,
) -> str:
    from oauthlib.oauth2 import OAuth2Error, WebApplicationClient

    identity, secret = settings.oauth_client_id or "", settings.oauth_client_secret or ""
    client = WebApplicationClient(identity)
    more = {"client_secret": secret} if secret_in_body else {}
    body = client.prepare_request_body(
        code=code, redirect_uri=redirect_uri, code_verifier=verifier, include_client_id=secret_in_body, **more
    )
    told = http.json("POST", url, form=body, basic=None if secret_in_body else (identity, secret))
    if not isinstance(told, dict):
        raise refused("the provider's answer to the code is no object")
    try:
        # Without a scope: it warns by raising where the provider grants another one.
        token = client.parse_request_body_response(json.dumps(told))["access_token"]
    except OAuth2Error as error:
        raise _refusal(f"the provider refused the code: {type(error).__name__}", error.error) from None
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


def _refusal(why: str, error: Any) -> SignInRefused:
    return SignInRefused(NOT_CONFIGURED, why) if error in WRONG_CLIENT else refused(why)


# --- calls ---


class Errand(threading.Thread):
    """What one sign-in asks of the provider, in a thread that is left behind when the time is over.

    Nothing ends the look-up of a name, and a server that sends a byte now and then never reaches the time limit of a
    socket. So whoever waits is let go, and the connections are cut, which ends the thread.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(name="errand", daemon=True)
        self._work = work
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self.over = threading.Event()
        self.done = False
        self.told: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.told = self._work()
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            self.error = error
        self.done = True
        self.end()

    def watch(self, connection: socket.socket) -> None:
        with self._lock:
            # A second handle, which stays valid when TLS takes the first one over.
            self._connections.append(connection.dup())
        if self.over.is_set():
            self.end()

    def end(self) -> None:
        self.over.set()
        with self._lock:
            for each in self._connections:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._connections.clear()


class Http:
    """Calls to the provider: no redirects, no proxies or passwords of this machine, limits in time and size."""

    def __init__(self) -> None:
        self.whole = WHOLE
        self._errands: set[Errand] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        """Gives up what is under way: the daemon stops."""
        with self._lock:
            self._stopped = True
            for errand in self._errands:
                errand.end()

    def within_limits(self, work: Callable[[], T]) -> T:
        """Calls are made in here only."""
        errand = Errand(work)
        with self._lock:
            if self._stopped:
                raise refused("the daemon stops")
            self._errands.add(errand)
        errand.start()
        errand.over.wait(self.whole)
        errand.end()
        with self._lock:
            self._errands.discard(errand)
        if errand.error is not None:
            raise errand.error
        if not errand.done:
            raise refused("the daemon stops" if self._stopped else f"no answer within {self.whole:g} s")
        told: T = errand.told
        return told

    def json(
        self,
        method: str,
        url: str,
        *,
        form: str | None = None,
        bearer: str | None = None,
        basic: tuple[str, str] | None = None,
    ) -> Any:
        headers = {"Accept": "application/json"}
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        host = urlsplit(url).hostname
        status, body = self._ask(method, url, headers, _read, form=form, basic=basic)
        try:
            told = json.loads(body)
        except (ValueError, RecursionError):
            raise refused(f"{host} answers {status} without JSON") from None
        if status != 200:
            said = told.get("error") if isinstance(told, dict) else None
            raise _refusal(f"{host} answers {status} {str(said)[:100]!r}", said)
        return told

    def look(self, url: str) -> tuple[int, bytes]:
        """What a browser would be answered first: the status, and the beginning of the page."""
        return self._ask("GET", url, {}, lambda answer: bytes(answer.raw.read(A_LOOK, decode_content=False)))

    def _ask(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        read: Callable[[Any], bytes],
        *,
        form: str | None = None,
        basic: tuple[str, str] | None = None,
    ) -> tuple[int, bytes]:
        import requests
        from urllib3.exceptions import HTTPError

        headers = headers | {"Accept-Encoding": "identity", "User-Agent": "usersctl"}
        try:
            auth = _basic(*basic) if basic is not None else None
            asked = requests.Request(method, url, data=form, headers=headers, auth=auth).prepare()
            # Without a session of requests, which looks for proxies and passwords, and reads all that comes with a
            # redirect even where it does not follow.
            with (
                closing(_adapter()) as adapter,
                closing(adapter.send(asked, stream=True, timeout=EACH_STEP)) as answer,
            ):
                return answer.status_code, read(answer)
        except (requests.RequestException, HTTPError, OSError, ValueError) as error:
            raise refused(f"{urlsplit(url).hostname} cannot be asked: {type(error).__name__}") from None


def _read(answer: Any) -> bytes:
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ValueError("compressed")
    body: bytes = answer.raw.read(MOST_BYTES + 1, decode_content=False)
    if len(body) > MOST_BYTES:
        raise ValueError("too much")
    return body


def _adapter() -> Any:
    from requests.adapters import HTTPAdapter

    adapter = HTTPAdapter(max_retries=0)
    adapter.init_poolmanager(1, 1, ssl_context=_authorities())
    adapter.poolmanager.pool_classes_by_scheme = _pools()
    return adapter


@cache
def _authorities() -> Any:
    """Besides those of requests whom this machine trusts: a company's own, and what SSL_CERT_FILE names."""
    import ssl

    return ssl.create_default_context()


@cache
def _pools() -> dict[str, Any]:
    """Connections that belong to the errand that opens them, from the first byte on."""
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    def watched(kind: type[HTTPConnection]) -> Any:
        class Watched(kind):  # type: ignore[misc,valid-type]
            def _new_conn(self) -> socket.socket:
                connection: socket.socket = super()._new_conn()
                errand = threading.current_thread()
                assert isinstance(errand, Errand), "outside of within_limits"  # noqa: S101
                errand.watch(connection)
                return connection

        return Watched

    class Plain(HTTPConnectionPool):
        ConnectionCls = watched(HTTPConnection)

    class Secure(HTTPSConnectionPool):
        ConnectionCls = watched(HTTPSConnection)

    return {"http": Plain, "https": Secure}


def _basic(identity: str, secret: str) -> Any:
    """RFC 6749 2.3.1: each part is encoded before they are joined."""
    from urllib.parse import quote_plus

    from requests.auth import HTTPBasicAuth

    return HTTPBasicAuth(quote_plus(identity), quote_plus(secret))
