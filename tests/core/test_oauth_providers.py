"""Identity providers: hostile ones, slow ones, unusual ones, and GitHub."""

import base64
import json
import signal
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from support.certificates import Certificates, make_certificates
from support.commands import PASSWORD, Command
from support.daemons import serving, wait_for
from support.fakes import FakeClock
from support.hostile import DISCOVERY, Hostile, Waiting, answer, bomb, dripped, endless, hostile, silent
from support.identities import provider_settings
from support.oauth_site import CALLBACK, GO, Browser, answered, asked, error_of
from support.web import Reply, Site, running

from usersctl.errors import SignInRefused
from usersctl.oauth.http import MOST_BYTES, WHOLE, HttpClient, _authorities
from usersctl.oauth.providers import DISCOVERY_KEPT, OpenIdProvider
from usersctl.service import Service

SECRET = "client-secret-5f1c"
CONFIGURED = {
    "oauth_client_id": "client-77",
    "oauth_client_secret": SECRET,
    "oauth_allow_auto_registration": True,
}
ENDPOINTS = {"discovery": DISCOVERY, "token": "/token", "profile": "/userinfo"}


@pytest.fixture
def provider() -> Iterator[Hostile]:
    with hostile() as server:
        yield server


@pytest.fixture
def elsewhere() -> Iterator[Hostile]:
    """Another server, which must never receive a request."""
    with hostile() as server:
        yield server
        assert server.arrived == []


class Visit:
    """A site that signs in at a provider, and a browser that returns with a code at once."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.browser = Browser(site.service.settings.base_url, site.client())

    def __call__(self, **more: str) -> Reply:
        there = self.browser.client.get(GO)
        location = str(there.header("Location"))
        return self.browser.client.get(answered(location, **more)) if "state=" in location else there

    def failure(self, **more: str) -> str:
        """The error code of a failed sign-in, which must not log an internal error."""
        code = error_of(self(**more))
        assert [line for line in self.site.log if line["event"] in ("error", "library")] == []
        assert self.browser.me() is None
        return code

    def why(self) -> str:
        return str([line["why"] for line in self.site.log if line["event"] == "oauth-refused"][-1])


@pytest.fixture
def make_visit(make_service: Callable[..., Service]) -> Iterator[Callable[..., Visit]]:
    with ExitStack() as stack:

        def make(*, whole: float = WHOLE, **changes: Any) -> Visit:
            service = make_service(**(CONFIGURED | changes))
            service.http.whole = whole
            return Visit(stack.enter_context(running(service)))

        yield make


@pytest.fixture
def visit(make_visit: Callable[..., Visit], provider: Hostile) -> Visit:
    return make_visit(oauth_issuer=provider.url)


def in_parallel(calls: list[Callable[[], Any]]) -> Waiting:
    waiting = Waiting()

    def run(call: Callable[[], Any]) -> None:
        began = time.monotonic()
        outcome = call()
        waiting.results.append((time.monotonic() - began, outcome))

    waiting.threads = [threading.Thread(target=run, args=[call]) for call in calls]
    for thread in waiting.threads:
        thread.start()
    return waiting


def test_a_correct_provider_signs_the_user_in(visit: Visit, provider: Hostile) -> None:
    assert visit().header("Location") == "/"
    assert (visit.browser.me() or {})["oauth_id"] == "1001"
    assert [request.path for request in provider.arrived] == [DISCOVERY, "/token", "/userinfo"]


# --- malformed answers ---

VALID: dict[str, Any] = {
    "issuer": "x",
    "access_token": "x",
    "sub": "1",
    "email": "ada@example.com",
    "email_verified": True,
}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def packed(megabytes: int, *headers: str) -> Callable[..., None]:
    """Made when it is sent first, because packing takes long."""
    return lambda connection, server: server.send(connection, answer(bomb(megabytes), *headers))


NONSENSE: dict[str, Any] = {
    "a list": answer([]),
    "a list of what is right": answer([VALID]),
    "null": answer(None),
    "a number": answer(1),
    "a text": answer("x"),
    "true": answer(True),
    "an empty object": answer({}),
    "nothing": answer(b""),
    "HTML": answer(b"<!doctype html><title>Sign in</title>", "Content-Type: text/html"),
    "a form": answer(b"access_token=x&token_type=bearer"),
    "half of it": answer(b'{"access_token": "x"'),
    "two objects": answer(b"{}{}"),
    "no UTF-8": answer(b'{"a": "\xff"}'),
    "brackets": answer(b"[" * 200_000),
    "an object in an object in an object": answer(b'{"a":' * 40_000),
    "a number of a million digits": answer(b"1" * 200_000),
    "NaN": answer(b"NaN"),
    "ten megabytes": answer(b'"' + b"x" * 10_000_000 + b'"'),
    "a gzip bomb": packed(100, "Content-Encoding: gzip"),
    "a brotli that is none": answer(b"xxx", "Content-Encoding: br"),
    "gzip without saying so": packed(1),
    "204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "201": answer(VALID, status="201 Created"),
    "400": answer(VALID, status="400 Bad Request"),
    "401": answer({"error": ["invalid_client"]}, status="401 Unauthorized"),
    "500": answer(VALID, status="500 Internal Server Error"),
    "500 in HTML": answer(b"<h1>oops", status="500 Internal Server Error"),
    "503": answer({"error": {}}, "Retry-After: 100000", status="503 Service Unavailable"),
    "599": answer(VALID, status="599 What"),
    "no status": b"hello\r\n\r\n",
    "a status that is no number": b"HTTP/1.1 abc OK\r\n\r\n{}",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "silence and the end": b"",
    "less than it said": answer(b"{}", length=1000),
    "a negative length": answer(b"{}", length=-5),
    "chunks that are none": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    "ten megabytes in chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b"x" * 65536 + b"\r\n" + b"10000\r\n" + b"x" * 10_000_000,
    "a thousand headers": HEAD + b"X: y\r\n" * 1000 + b"\r\n{}",
    "a long header": HEAD + b"X: " + b"y" * 100_000 + b"\r\n\r\n{}",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n{}",
    "an endless body": endless(HEAD + b"\r\n", b" " * 65536),
    "an endless body in chunks": endless(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b" " * 4096 + b"\r\n"),
    "an endless error": endless(b"HTTP/1.1 500 Oops\r\n\r\n", b" " * 65536),
}  # fmt: skip


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_malformed_answer_ends_the_sign_in_with_one_error_code(
    visit: Visit, provider: Hostile, clock: FakeClock, endpoint: str
) -> None:
    bomb(100)  # made before time is measured, and kept
    for what, nonsense in NONSENSE.items():
        clock.move(seconds=DISCOVERY_KEPT.total_seconds() + 1)
        provider.answers = {ENDPOINTS[endpoint]: nonsense}
        provider.sent = 0
        began = time.monotonic()
        assert visit.failure() == "oauth_failed", what
        assert time.monotonic() - began < 4, what
        assert provider.sent < 20_000_000, what
    provider.answers = {}
    assert visit().header("Location") == "/"


def test_the_log_says_that_an_answer_is_too_long_or_compressed(visit: Visit, provider: Hostile) -> None:
    """The provider was reached, so nobody has to look at the network."""
    provider.answers = {"/token": answer(b" " * (MOST_BYTES + 1))}
    assert visit.failure() == "oauth_failed"
    assert visit.why() == "127.0.0.1 answers more than 256 kB"
    provider.answers = {"/token": answer(bomb(), "Content-Encoding: gzip")}
    assert visit.failure() == "oauth_failed"
    assert visit.why() == "127.0.0.1 answers compressed, which was not asked for"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_redirect_is_not_followed_and_the_secret_goes_nowhere_else(
    visit: Visit, provider: Hostile, elsewhere: Hostile, clock: FakeClock, endpoint: str
) -> None:
    for status in (300, 301, 302, 303, 307, 308):
        for target in (
            f"{elsewhere.url}/token",
            f"//127.0.0.1:{elsewhere.port}/",
            "/token",
            "file:///etc/passwd",
            "",
        ):
            clock.move(seconds=DISCOVERY_KEPT.total_seconds() + 1)
            before = len(provider.asked(ENDPOINTS[endpoint]))
            moved = answer(VALID, f"Location: {target}", status=f"{status} Moved")
            provider.answers = {ENDPOINTS[endpoint]: moved}
            assert visit.failure() == "oauth_failed"
            assert len(provider.asked(ENDPOINTS[endpoint])) == before + 1


def test_the_body_of_a_redirect_is_not_decompressed(
    visit: Visit, provider: Hostile, elsewhere: Hostile
) -> None:
    head = f"HTTP/1.1 307 MustWait\r\nLocation: {elsewhere.url}/\r\n".encode()
    provider.answers = {"/token": endless(head + b"\r\n", b"x" * 65536)}
    assert visit.failure() == "oauth_failed"
    assert provider.sent < 20_000_000
    packed = bomb()
    provider.answers = {
        "/token": head + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed
    }
    began = time.process_time()
    assert visit.failure() == "oauth_failed"
    assert time.process_time() - began < 0.5


def test_a_location_header_on_a_200_changes_nothing(
    visit: Visit, provider: Hostile, elsewhere: Hostile
) -> None:
    provider.answers = {"/token": answer(provider.token, f"Location: {elsewhere.url}/")}
    assert visit().header("Location") == "/"


ODD_TOKENS: list[dict[str, Any]] = [
    *({"access_token": value} for value in (None, 1, True, [], {}, ["x"], "", "a b", "a\r\nX-Evil: y", "a\nb", "\x00", "ä", "\ud800", "x" * 9000)),
    *({"access_token": "x", "token_type": value} for value in ("mac", "DPoP", 5, None, [], {})),
    *({"access_token": "x", "error": value} for value in ("invalid_grant", "x", "", None, [], {}, 5)),
    *({"access_token": "x", "expires_in": value} for value in ("x", [], {}, float("inf"), float("nan"), 1e300)),
    *({"access_token": "x", "scope": value} for value in (5, 1.5, True)),
    {"token": "x"},
]  # fmt: skip


def test_an_invalid_token_answer_ends_the_sign_in(visit: Visit, provider: Hostile) -> None:
    for odd in ODD_TOKENS:
        provider.answers = {"/token": answer(odd)}
        reply = visit()
        if reply.header("Location") == "/":
            # The odd member was one that we ignore: the profile was read with this token.
            assert odd["access_token"] == "x"
            assert not {"error", "token_type"} & set(odd), odd
            visit.browser.client.cookies.clear()
        else:
            assert error_of(reply) == "oauth_failed", odd
    assert [line for line in visit.site.log if line["event"] in ("error", "library")] == []
    assert not provider.holds("X-Evil")
    assert {request.headers["authorization"] for request in provider.asked("/userinfo")} <= {"Bearer x"}


def test_an_answer_that_is_nested_deeper_than_the_library_reads_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(50_000):
        nested = [nested]
    http = HttpClient()
    http.json = lambda *_, **__: {"access_token": "x", "nested": nested}  # type: ignore[method-assign]
    provider = OpenIdProvider(provider_settings("work"), CALLBACK, http, FakeClock())
    with pytest.raises(SignInRefused, match="RecursionError"):
        provider._exchange("https://id.example/token", "code", "verifier", secret_in_body=True)


class _EmptiedByAnother(OpenIdProvider):
    """Another thread renews the discovery document, and with it the keys, after each look at them."""

    _held: list[dict[str, Any]] | None = None

    @property
    def _keys(self) -> list[dict[str, Any]] | None:
        held, self._held = self._held, None
        return held

    @_keys.setter
    def _keys(self, keys: list[dict[str, Any]] | None) -> None:
        self._held = keys


def test_keys_that_another_thread_empties_are_not_lost_to_a_sign_in() -> None:
    http = HttpClient()
    http.json = lambda *_, **__: {"keys": [{"kid": "1"}]}  # type: ignore[method-assign]
    provider = _EmptiedByAnother(provider_settings("work"), CALLBACK, http, FakeClock())
    found = [provider._find_keys("https://id.example/keys", fresh=fresh) for fresh in (True, False)]
    provider._keys = found[0]
    assert [*found, provider._find_keys("https://id.example/keys", fresh=False)] == [[{"kid": "1"}]] * 3


ODD_PROFILES: list[dict[str, Any]] = [
    *({"sub": value} for value in (None, 1, True, [], {}, "", "\x00", "a\nb", "ä", "\ud800", "x" * 256)),
    *({"email": value} for value in (None, 1, [], ["ada@example.com"], {}, "", "ada", "\ud800@example.com", "a@b.example, c@d.example", "x" * 200_000)),
    *({"email_verified": value} for value in (None, False, "true", "True", 1, [], {}, "yes")),
]  # fmt: skip


def test_an_invalid_profile_ends_the_sign_in(visit: Visit, provider: Hostile) -> None:
    good = dict(provider.profile)
    for odd in ODD_PROFILES:
        provider.profile = good | odd
        assert visit.failure() == "oauth_failed", odd
    for missing in ("sub", "email", "email_verified"):
        provider.profile = {name: value for name, value in good.items() if name != missing}
        assert visit.failure() == "oauth_failed", missing
    with visit.site.service.store.read() as tx:
        assert list(tx.all_credentials()) == []


def test_an_invalid_name_or_picture_is_left_out(visit: Visit, provider: Hostile) -> None:
    for number, odd in enumerate((None, 1, [], {}, True, "\x00", "\ud800", "x" * 100_000)):
        provider.profile |= {
            "sub": str(number),
            "email": f"ada{number}@example.com",
            "name": odd,
            "picture": odd,
        }
        assert visit().header("Location") == "/"
        me = visit.browser.me()
        assert me is not None
        assert me["name"] in (f"ada{number}", "x" * 200)
        assert me["profile_picture"] is None


# --- discovery ---


ODD_URLS: list[Any] = [
    None, 1, [], {}, "", "/token", "ftp://p.example/", "javascript:alert(1)", "http://evil.example/token", "http://127.0.0.1.evil.example/",
    "https://user:secret@p.example/", "https://", "https://[::1", "https://p.example:99999/", "https://p.example/\r\nX: y", "https://p.example/a b",
    "https://p.example/#x", "https://p.example/ä", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize(
    "endpoint", ["authorization_endpoint", "token_endpoint", "userinfo_endpoint", "jwks_uri"]
)
def test_an_https_issuer_may_not_name_http_endpoints(
    make_visit: Callable[..., Visit],
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: Hostile,
    endpoint: str,
) -> None:
    """Not even on this machine, where they could be other services."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    with hostile(host="localhost", tls=certificates.server("localhost")) as provider:
        provider.discovery["jwks_uri"] = f"{provider.url}/keys"
        provider.discovery[endpoint] = f"{elsewhere.url}/token"
        visit = make_visit(oauth_issuer=provider.url)
        assert visit.failure() == "oauth_failed"
        assert visit.why() == f"{endpoint} of the discovery document is http, and its issuer https"
        assert {request.path for request in provider.arrived} == {DISCOVERY}


@pytest.mark.parametrize("endpoint", ["authorization_endpoint", "token_endpoint", "userinfo_endpoint"])
def test_an_invalid_endpoint_gets_no_request(visit: Visit, provider: Hostile, endpoint: str) -> None:
    for url in ODD_URLS:
        provider.discovery[endpoint] = url
        assert visit.failure() == "oauth_failed", url
    del provider.discovery[endpoint]
    assert visit.failure() == "oauth_failed"
    assert visit.why() == f"the discovery document has no {endpoint}"
    assert {request.path for request in provider.arrived} == {DISCOVERY}


def test_a_discovery_document_of_another_issuer_is_refused(visit: Visit, provider: Hostile) -> None:
    ours = provider.url
    for issuer in ("https://evil.example", "", None, 5, [], f"{ours}/x", f"{ours}x", f"{ours}//", ours.upper(), ours.replace("127.0.0.1", "localhost")):  # fmt: skip
        provider.discovery["issuer"] = issuer
        assert visit.failure() == "oauth_failed", issuer
        assert "issuer" in visit.why()
    assert {request.path for request in provider.arrived} == {DISCOVERY}


def test_an_issuer_of_all_tenants_is_refused_with_a_hint(visit: Visit, provider: Hostile) -> None:
    provider.discovery["issuer"] = "https://login.microsoftonline.com/{tenantid}/v2.0"
    assert visit.failure() == "oauth_failed"
    assert visit.why().endswith("must be exactly that, with the id of your tenant in place of the braces")


@pytest.mark.parametrize("path", ["", "/realms/main", "/application/o/users"])
@pytest.mark.parametrize(("configured", "announced"), [("", ""), ("/", "/"), ("", "/"), ("/", "")])
def test_the_issuer_is_compared_to_the_last_character(
    make_visit: Callable[..., Visit], provider: Hostile, path: str, configured: str, announced: str
) -> None:
    """A slash at its end is left out where the document is fetched (OpenID Connect Discovery 4.1), and only there."""
    issuer = provider.url + path
    provider.discovery["issuer"] = issuer + announced
    provider.discovery["authorization_response_iss_parameter_supported"] = True
    provider.answers[path + DISCOVERY] = answer(provider.discovery)
    visit = make_visit(oauth_issuer=issuer + configured)
    if configured != announced:
        assert visit.failure(iss=issuer + announced) == "oauth_failed"
        assert f"is called {issuer + announced!r}, and auth.oauth.issuer must be exactly that" in visit.why()
        return
    assert visit.failure(iss=issuer + ("" if announced else "/")) == "oauth_failed"
    assert visit(iss=issuer + announced).header("Location") == "/"


def test_iss_is_checked_when_sent_and_required_when_announced(
    visit: Visit, provider: Hostile, clock: FakeClock
) -> None:
    assert visit.failure(iss="https://evil.example") == "oauth_failed"
    assert provider.asked("/token") == []
    assert visit(iss=provider.url).header("Location") == "/"
    assert visit().header("Location") == "/"
    visit.browser.client.cookies.clear()
    provider.discovery["authorization_response_iss_parameter_supported"] = True
    clock.move(seconds=DISCOVERY_KEPT.total_seconds() + 1)
    assert visit.failure() == "oauth_failed"
    assert visit(iss=provider.url).header("Location") == "/"


def test_the_discovery_document_is_fetched_once_an_hour(
    visit: Visit, provider: Hostile, clock: FakeClock
) -> None:
    for _ in range(3):
        visit()
    assert len(provider.asked(DISCOVERY)) == 1
    clock.move(seconds=DISCOVERY_KEPT.total_seconds() - 1)
    visit()
    assert len(provider.asked(DISCOVERY)) == 1
    clock.move(seconds=2)
    provider.discovery["token_endpoint"] = f"{provider.url}/moved"
    provider.answers["/moved"] = answer(provider.token)
    assert visit().header("Location") == "/"
    assert (len(provider.asked(DISCOVERY)), len(provider.asked("/moved"))) == (2, 1)


def test_the_discovery_document_is_fetched_again_after_a_failure_but_once_a_minute_at_most(
    visit: Visit, provider: Hostile, clock: FakeClock
) -> None:
    assert visit().header("Location") == "/"
    for path in ("/token", "/userinfo"):
        provider.answers[path] = answer({}, status="404 Not Found")
        for _ in range(3):
            assert error_of(visit()) == "oauth_failed"
        del provider.answers[path]
        before = len(provider.asked(DISCOVERY))
        clock.move(seconds=59)
        assert visit().header("Location") == "/"
        assert len(provider.asked(DISCOVERY)) == before
        clock.move(seconds=2)
        assert visit().header("Location") == "/"
        clock.move(minutes=50)
        assert visit().header("Location") == "/"
        assert len(provider.asked(DISCOVERY)) == before + 1


def test_a_discovery_document_from_before_the_clock_was_set_back_is_fetched_again(
    visit: Visit, provider: Hostile, clock: FakeClock
) -> None:
    clock.move(days=365)
    assert visit().header("Location") == "/"
    clock.move(days=-365)
    assert visit().header("Location") == "/"
    assert visit().header("Location") == "/"
    assert len(provider.asked(DISCOVERY)) == 2


def test_a_failed_discovery_is_repeated_by_the_next_sign_in(visit: Visit, provider: Hostile) -> None:
    provider.answers[DISCOVERY] = answer({}, status="500 Oops")
    assert visit.failure() == "oauth_failed"
    provider.answers.clear()
    assert visit().header("Location") == "/"


def test_an_authorization_endpoint_keeps_the_query_that_it_has(visit: Visit, provider: Hostile) -> None:
    provider.discovery["authorization_endpoint"] += "?tenant=a%20b&x="
    there = asked(visit.browser.set_out())
    assert (there["tenant"], there["x"], there["client_id"]) == ("a b", "", "client-77")


def test_configured_endpoints_need_no_discovery(make_visit: Callable[..., Visit], provider: Hostile) -> None:
    visit = make_visit(
        oauth_authorization_url="https://p.example/authorize",
        oauth_token_url=f"{provider.url}/token",
        oauth_user_info_url=f"{provider.url}/userinfo",
    )
    assert urlsplit(visit.browser.set_out()).netloc == "p.example"
    assert visit(iss="https://whatever.it.calls.itself").header("Location") == "/"
    assert [request.path for request in provider.arrived] == ["/token", "/userinfo"]
    assert provider.arrived[0].headers["authorization"].startswith("Basic ")


def test_a_configured_endpoint_overrides_the_discovered_one(
    make_visit: Callable[..., Visit], provider: Hostile
) -> None:
    provider.answers["/other"] = answer(provider.token)
    visit = make_visit(oauth_issuer=provider.url, oauth_token_url=f"{provider.url}/other")
    assert visit().header("Location") == "/"
    assert [request.path for request in provider.arrived] == [DISCOVERY, "/other", "/userinfo"]


# --- client authentication ---


@pytest.mark.parametrize("methods", [None, ["client_secret_basic"], ["client_secret_post", "client_secret_basic"], [], ["private_key_jwt"],
                                     5, {}, "client_secret_post", [None, 5]], ids=repr)  # fmt: skip
def test_the_secret_goes_into_a_header_with_each_part_encoded(
    make_visit: Callable[..., Visit], provider: Hostile, methods: Any
) -> None:
    identity, secret = "client:77 +ä", 's%c:r/t&=?+ ~密\\"'
    provider.discovery["token_endpoint_auth_methods_supported"] = methods
    visit = make_visit(oauth_issuer=provider.url, oauth_client_id=identity, oauth_client_secret=secret)
    assert visit().header("Location") == "/"
    (call,) = provider.asked("/token")
    scheme, _, encoded = call.headers["authorization"].partition(" ")
    assert scheme == "Basic"
    parts = base64.b64decode(encoded).decode("ascii").split(":")
    # RFC 6749 2.3.1 says application/x-www-form-urlencoded.
    assert parts == [urlencode({"": identity})[1:], urlencode({"": secret})[1:]]
    assert set(call.form) == {"grant_type", "code", "redirect_uri", "code_verifier"}
    assert call.form["redirect_uri"] == visit.browser.base_url + CALLBACK
    assert not provider.holds(secret)


def test_the_secret_goes_into_the_body_where_discovery_says_so(
    make_visit: Callable[..., Visit], provider: Hostile
) -> None:
    secret = "s%c:r/t&=?+ ~密"
    provider.discovery["token_endpoint_auth_methods_supported"] = ["private_key_jwt", "client_secret_post"]
    visit = make_visit(oauth_issuer=provider.url, oauth_client_secret=secret)
    assert visit().header("Location") == "/"
    (call,) = provider.asked("/token")
    assert "authorization" not in call.headers
    assert (call.form["client_id"], call.form["client_secret"]) == ("client-77", secret)
    assert call.form["grant_type"] == "authorization_code"
    assert call.headers["content-type"] == "application/x-www-form-urlencoded"


@pytest.mark.parametrize(("status", "error"), [("401 Unauthorized", "invalid_client"), ("400 Bad Request", "invalid_client"),
                                               ("401 Unauthorized", "unauthorized_client"), ("200 OK", "invalid_client")])  # fmt: skip
def test_an_unknown_client_is_reported_as_not_configured(
    visit: Visit, provider: Hostile, status: str, error: str
) -> None:
    provider.answers["/token"] = answer({"error": error}, status=status)
    assert visit.failure() == "oauth_not_configured"
    assert visit.why().endswith(repr(error))


def test_the_log_says_why_a_right_client_may_be_refused(
    make_visit: Callable[..., Visit], provider: Hostile
) -> None:
    """LemonLDAP and Glewlwyd do not decode what HTTP Basic encodes by RFC 6749."""
    provider.answers["/token"] = answer({"error": "invalid_client"}, status="401 Unauthorized")
    visit = make_visit(oauth_issuer=provider.url, oauth_client_secret="with a blank")
    assert visit.failure() == "oauth_not_configured"
    assert visit.why().endswith("misread an id or secret with other characters than A-Za-z0-9._~-")
    provider.discovery["token_endpoint_auth_methods_supported"] = [
        "client_secret_post",
        "client_secret_basic",
    ]
    visit = make_visit(oauth_issuer=provider.url)
    assert visit.failure() == "oauth_not_configured"
    assert visit.why().endswith("; the client has to be registered there for client_secret_basic")
    provider.discovery["token_endpoint_auth_methods_supported"] = ["private_key_jwt", "tls_client_auth"]
    visit = make_visit(oauth_issuer=provider.url)
    assert visit.failure() == "oauth_not_configured"
    assert visit.why().endswith("it announces 'private_key_jwt, tls_client_auth', and not the client secret")
    provider.discovery["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    visit = make_visit(oauth_issuer=provider.url, oauth_client_secret="with a blank")
    assert visit.failure() == "oauth_not_configured"
    assert visit.why().endswith("'invalid_client'")


def test_the_log_has_the_error_of_the_provider_in_its_own_words(visit: Visit, provider: Hostile) -> None:
    error = {"error": "invalid_grant", "error_description": "The code\nis " + "too old. " * 100}
    for status in ("400 Bad Request", "200 OK"):
        provider.answers["/token"] = answer(error, status=status)
        assert visit.failure() == "oauth_failed"
        assert "'invalid_grant': 'The code\\nis too old. too old." in visit.why()
        assert len(visit.why()) < 500
    provider.answers.clear()
    assert visit.failure(error="server_error", error_description="Out of order", code="") == "oauth_failed"
    assert visit.why() == "the provider says 'server_error': 'Out of order'"


def test_the_log_says_what_the_status_of_an_answer_means(visit: Visit, provider: Hostile) -> None:
    moved, found = (
        "Location: https://www.example/token?code=secret",
        "Location: https://www.example/#token=secret",
    )
    for status, headers, value, meaning in (
        ("302 Found", [], b"<html>", "answers 302, and redirects are not followed"),
        ("307 Temporary Redirect", [moved], {}, "answers 307 to 'https://www.example/token', and redirects are not followed"),
        ("302 Found", [found], {}, "answers 302 to 'https://www.example/', and redirects are not followed"),
        ("500 Internal Server Error", [], {}, "answers 500"),
        ("500 Internal Server Error", [], [], "answers 500"),
        ("502 Bad Gateway", [], b"<html>", "answers 502 without JSON (Content-Type: 'application/json')"),
        ("403 Forbidden", ['WWW-Authenticate: Bearer error="insufficient_scope"'], {}, """answers 403 (WWW-Authenticate: 'Bearer error="insufficient_scope"')"""),
        ("401 Unauthorized", ["WWW-Authenticate: Bearer"], b"", "answers 401 without JSON (Content-Type: 'application/json', WWW-Authenticate: 'Bearer')"),
        ("401 Unauthorized", ["WWW-Authenticate: Bearer"], {"error": "invalid_token"}, "answers 401 'invalid_token'"),
    ):  # fmt: skip
        provider.answers["/token"] = answer(value, *headers, status=status)
        assert visit.failure() == "oauth_failed"
        assert visit.why() == f"127.0.0.1 {meaning}"


def test_the_log_says_that_a_profile_is_signed(visit: Visit, provider: Hostile) -> None:
    body = b"eyJhbGciOiJSUzI1NiJ9.e30.c2lnbmVk"
    provider.answers["/userinfo"] = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/jwt\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    assert visit.failure() == "oauth_failed"
    assert visit.why() == "127.0.0.1 answers 200 without JSON (Content-Type: 'application/jwt')"


def test_the_log_says_what_the_provider_says_of_the_address(visit: Visit, provider: Hostile) -> None:
    for said in (False, None, "true", 1, {"a": "x" * 1000}):
        provider.profile["email_verified"] = said
        assert visit.failure() == "oauth_failed"
        shown = json.dumps(said)[:100]
        assert visit.why() == f"the provider says email_verified: {shown}, which has to be true"
        page = visit.browser.client.get("/login?error=oauth_failed").body.decode()
        verify, tell = "Verify it there, and try again.", "Tell the people who run this site."
        assert [text in page for text in (verify, tell)] == [said is False, said is not False]
    del provider.profile["email_verified"]
    assert visit.failure() == "oauth_failed"
    assert tell in visit.browser.client.get("/login?error=oauth_failed").body.decode()
    why = "the provider does not say whether the address is verified, and auth.oauth.trustsEmail is not set"
    assert visit.why() == why


def test_an_address_without_a_word_about_its_verification_counts_only_if_the_operator_trusts_it(
    make_visit: Callable[..., Visit], provider: Hostile
) -> None:
    visit = make_visit(oauth_issuer=provider.url, oauth_trusts_email=True)
    for said in (False, None, "false", "true", 1, {}):
        provider.profile["email_verified"] = said
        assert visit.failure() == "oauth_failed", said
    del provider.profile["email_verified"]
    assert visit().header("Location") == "/"
    assert (visit.browser.me() or {})["email"] == "ada@example.com"


def test_proxies_and_netrc_passwords_of_this_machine_are_ignored(
    visit: Visit, provider: Hostile, elsewhere: Hostile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, elsewhere.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login root password toor\ndefault login root password toor\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(netrc))
    assert visit().header("Location") == "/"
    (discovery,), (profile,) = provider.asked(DISCOVERY), provider.asked("/userinfo")
    assert "authorization" not in discovery.headers
    assert profile.headers["authorization"] == "Bearer an-access-token"
    assert "cookie" not in discovery.headers


# --- TLS ---


@pytest.fixture(autouse=True)
def _authorities_are_read_anew() -> Iterator[None]:
    """The authorities are cached for the whole process."""
    _authorities.cache_clear()
    yield
    _authorities.cache_clear()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_a_certificate_authority_in_ssl_cert_file_is_trusted(
    make_visit: Callable[..., Visit], certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    with hostile(host="localhost", tls=certificates.server("localhost")) as provider:
        visit = make_visit(oauth_issuer=provider.url)
        assert visit().header("Location") == "/"
        assert provider.holds("an-access-token")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"trusted": False}, "issuer certificate"),
        ({"days": -2}, "certificate has expired"),
        ({"names": ("p.example",)}, "certificate is not valid for 'localhost'"),
        ({"unknown": True}, "issuer certificate"),
    ],
    ids=str,
)
def test_a_server_with_a_bad_certificate_receives_no_request_and_the_log_says_what_is_wrong_with_it(
    make_visit: Callable[..., Visit],
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    wrong: dict[str, Any],
    why: str,
) -> None:
    if not wrong.pop("unknown", False):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    context: ssl.SSLContext = certificates.server(*wrong.pop("names", ("localhost",)), **wrong)
    with hostile(host="localhost", tls=context) as provider:
        visit = make_visit(oauth_issuer=provider.url)
        assert visit.failure() == "oauth_failed"
        assert provider.arrived == []
    assert visit.why().startswith("localhost cannot be reached: ")
    assert why in visit.why()


# --- time limits ---

SLOW: dict[str, Any] = {
    "silence": silent,
    "a drip of headers": dripped(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 200),
    "a drip of the body": dripped(b'{"access_token": "' + b"x" * 200, HEAD + b"Content-Length: 5000\r\n\r\n"),
    "a drip of chunks": dripped(b"1\r\n{\r\n" * 50, HEAD + b"Transfer-Encoding: chunked\r\n\r\n"),
    "continue, for ever": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("slow", SLOW)
def test_all_requests_of_a_sign_in_share_one_time_limit(
    make_visit: Callable[..., Visit], provider: Hostile, slow: str, endpoint: str
) -> None:
    provider.answers[ENDPOINTS[endpoint]] = SLOW[slow]
    visit = make_visit(whole=0.4, oauth_issuer=provider.url)
    began = time.monotonic()
    assert visit.failure() == "oauth_failed"
    assert time.monotonic() - began < 2.5
    wait_for(lambda: not sign_in_threads(), 3)


def sign_in_threads() -> list[threading.Thread]:
    """The threads whose requests have not ended."""
    return [thread for thread in threading.enumerate() if thread.name == "oauth-sign-in"]


@pytest.mark.slow
def test_the_time_limit_is_not_renewed_by_each_request(
    make_visit: Callable[..., Visit], provider: Hostile
) -> None:
    def later(seconds: float, reply: bytes) -> Callable[..., None]:
        def send(connection: Any, server: Hostile) -> None:
            server.closing.wait(seconds)
            server.send(connection, reply)

        return send

    visit = make_visit(whole=1.2, oauth_issuer=provider.url)
    there = visit.browser.set_out()
    provider.answers["/token"] = later(0.8, answer(provider.token))
    provider.answers["/userinfo"] = later(0.8, answer(provider.profile))
    began = time.monotonic()
    assert error_of(visit.browser.client.get(answered(there))) == "oauth_failed"
    assert time.monotonic() - began < 2.4


@pytest.mark.slow
@pytest.mark.alone
def test_a_dripping_provider_fails_within_ten_seconds(
    make_visit: Callable[..., Visit], certificates: Certificates
) -> None:
    """With the daemon's real limits: headers, body, TLS handshake, connect."""
    with ExitStack() as stack:
        servers = [stack.enter_context(hostile()) for _ in range(3)]
        servers[0].answers["/token"] = SLOW["a drip of headers"]
        servers[1].answers["/token"] = SLOW["a drip of the body"]
        servers[2].answers["/token"] = silent
        handshake = stack.enter_context(hostile(host="localhost", tls=certificates.server("localhost")))
        handshake.greeting = dripped(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03" + b"\x00" * 200)
        visits = [make_visit(oauth_issuer=server.url) for server in (*servers, handshake)]
        # The last one fails before a callback.
        paths = [answered(client.browser.set_out()) for client in visits[:3]] + [GO]
        calls = zip(visits, paths, strict=True)
        waiting = in_parallel(
            [lambda pair=call: error_of(pair[0].browser.client.get(pair[1])) for call in calls]
        )
        waiting.join(20)
        assert [outcome for _, outcome in waiting.results] == ["oauth_failed"] * 4
        assert max(seconds for seconds, _ in waiting.results) < 10
        assert max(seconds for seconds, _ in waiting.results) > 8  # at least one used the whole time
        wait_for(lambda: not sign_in_threads(), 5)


@pytest.mark.slow
@pytest.mark.alone
def test_hanging_provider_calls_do_not_slow_other_requests(
    make_visit: Callable[..., Visit], provider: Hostile
) -> None:
    visit = make_visit(whole=3.0, oauth_issuer=provider.url, whitelist=("/register",))
    site = visit.site
    ada = site.add("ada2")
    client = site.signed_in(ada)
    quiet = [timed(lambda: client.get("/api/users/me")) for _ in range(50)]
    callbacks = [
        (browser, answered(browser.set_out())) for browser in [Visit(site).browser for _ in range(12)]
    ]
    provider.answers["/token"] = silent
    waiting = in_parallel(
        [lambda pair=callback: error_of(pair[0].client.get(pair[1])) for callback in callbacks]
    )
    wait_for(lambda: len(provider.asked("/token")) == 12, 3)
    busy = [timed(lambda: client.get("/api/users/me")) for _ in range(100)]
    assert statistics.median(busy) < 3 * statistics.median(quiet) + 0.02
    assert max(busy) < 1
    # No slot for hashes is held, and no transaction.
    assert timed(lambda: site.client().login(ada.email, PASSWORD)) < 1
    assert timed(lambda: client.patch("/api/users/me", {"name": "Ada"})) < 1
    new = {"email": "new@example.com", "name": "New", "password": PASSWORD}
    assert timed(lambda: site.client().post("/api/users/register", new)) < 1
    assert waiting.results == []  # all of this happened while they waited
    waiting.join(10)
    assert [outcome for _, outcome in waiting.results] == ["oauth_failed"] * 12
    assert max(seconds for seconds, _ in waiting.results) < 6


def timed(call: Callable[[], Reply]) -> float:
    began = time.monotonic()
    assert call().status == 200
    return time.monotonic() - began


@pytest.mark.slow
def test_waiting_sign_ins_fail_together_instead_of_one_by_one(
    make_visit: Callable[..., Visit], provider: Hostile
) -> None:
    visit = make_visit(whole=1.5, oauth_issuer=provider.url)
    provider.answers[DISCOVERY] = silent
    waiting = in_parallel([lambda: visit.site.client().get(GO)] * 45)
    waiting.join(15)
    assert max(seconds for seconds, _ in waiting.results) < 5
    # The requests without room in the queue end at the error page, too.
    assert [error_of(reply) for _, reply in waiting.results] == ["oauth_failed"] * 45
    assert len(provider.asked(DISCOVERY)) <= 32
    refused = [line for line in visit.site.log if "Too many" in line.get("why", "")]
    assert 0 < len(refused) <= 13


@pytest.mark.slow
def test_a_head_request_waits_in_the_same_lane_as_a_get(
    make_visit: Callable[..., Visit], provider: Hostile
) -> None:
    visit = make_visit(whole=3.0, oauth_issuer=provider.url)
    client = visit.site.signed_in(visit.site.add("ada2"))
    provider.answers[DISCOVERY] = silent
    waiting = in_parallel([lambda: visit.site.client().send("HEAD", GO)] * 10)
    wait_for(lambda: len(provider.asked(DISCOVERY)) == 10, 3)
    assert timed(lambda: client.get("/api/users/me")) < 1
    assert waiting.results == []
    waiting.join(10)


def test_a_stopping_daemon_aborts_its_provider_calls(usersctl: Command, provider: Hostile) -> None:
    usersctl.configure(
        f'[auth.oauth]\nclientId = "client-77"\nclientSecret = "{SECRET}"\nissuer = "{provider.url}"\n'
    )
    with serving(usersctl) as daemon:
        browsers = [Browser(f"http://127.0.0.1:{daemon.port}", daemon.client()) for _ in range(6)]
        paths = [answered(browser.set_out()) for browser in browsers]
        provider.answers["/token"] = dripped(b"x" * 100, HEAD)
        calls = zip(browsers, paths, strict=True)
        waiting = in_parallel([lambda pair=call: error_of(pair[0].client.get(pair[1])) for call in calls])
        wait_for(lambda: len(provider.asked("/token")) == 6, 5)
        began = time.monotonic()
        assert daemon.stop(signal.SIGTERM) == 0
        assert time.monotonic() - began < 6
        waiting.join(5)
        assert [outcome for _, outcome in waiting.results] == ["oauth_failed"] * 6
        assert SECRET not in daemon.file.read_text()
        assert daemon.events("error") == []


# --- GitHub ---

ADDRESSES = [
    {"email": "old@example.com", "primary": False, "verified": True},
    {"email": "ada@example.com", "primary": True, "verified": True},
    {"email": "new@example.com", "primary": False, "verified": False},
]


@pytest.fixture
def github(provider: Hostile) -> Hostile:
    user = {
        "id": 583231,
        "login": "ada",
        "name": None,
        "email": None,
        "avatar_url": "https://avatars.example/u/583231?v=4",
    }
    token = {"access_token": "gho_x", "scope": "read:user,user:email", "token_type": "bearer"}
    provider.answers = {
        "/login/oauth/access_token": answer(token),
        "/user": answer(user),
        "/user/emails?per_page=100": answer(ADDRESSES),
    }
    return provider


@pytest.fixture
def at_github(make_visit: Callable[..., Visit], github: Hostile) -> Visit:
    return make_visit(
        oauth_provider="github",
        oauth_authorization_url=f"{github.url}/login/oauth/authorize",
        oauth_token_url=f"{github.url}/login/oauth/access_token",
        oauth_user_info_url=f"{github.url}/user",
    )


def test_github_signs_in_with_its_verified_primary_address(at_github: Visit, github: Hostile) -> None:
    assert asked(at_github.browser.set_out())["scope"] == "read:user user:email"
    assert at_github().header("Location") == "/"
    me = at_github.browser.me()
    assert me is not None
    assert (me["email"], me["name"], me["oauth_id"], me["profile_picture"]) == (
        "ada@example.com",
        "ada",
        "583231",
        "https://avatars.example/u/583231?v=4",
    )
    exchange, *calls = github.arrived
    assert exchange.form["client_secret"] == SECRET
    assert exchange.headers["accept"] == "application/json"
    assert [call.path for call in calls] == ["/user", "/user/emails?per_page=100"]
    assert {call.headers["authorization"] for call in calls} == {"Bearer gho_x"}


@pytest.mark.parametrize("addresses", [[], None, {}, [None], ["ada@example.com"], [{}], [{"email": "ada@example.com", "primary": True}], ADDRESSES[::2],
                                       [{"email": "ada@example.com", "primary": True, "verified": False}], [{"email": 5, "primary": True, "verified": True}],
                                       [{"email": "ada@example.com", "primary": "true", "verified": True}]], ids=lambda value: str(value)[:40])  # fmt: skip
def test_github_without_a_verified_primary_address_is_a_failure(
    at_github: Visit, github: Hostile, addresses: Any
) -> None:
    github.answers["/user/emails?per_page=100"] = answer(addresses)
    assert at_github.failure() == "oauth_failed"


@pytest.mark.parametrize("user", [{}, [], None, {"id": None}, {"id": "583231"}, {"id": True}, {"id": 1.5}, {"id": [1]}, {"id": 10**300}], ids=lambda user: str(user)[:24])  # fmt: skip
def test_a_github_profile_without_a_numeric_id_is_a_failure(
    at_github: Visit, github: Hostile, user: Any
) -> None:
    github.answers["/user"] = answer(user)
    assert at_github.failure() == "oauth_failed"


@pytest.mark.parametrize(("error", "code"), [("bad_verification_code", "oauth_failed"), ("incorrect_client_credentials", "oauth_not_configured")])  # fmt: skip
def test_github_reports_errors_with_status_200(
    at_github: Visit, github: Hostile, error: str, code: str
) -> None:
    github.answers["/login/oauth/access_token"] = answer({"error": error, "error_description": "x"})
    assert at_github.failure() == code


def test_github_needs_no_endpoint_in_the_configuration(make_visit: Callable[..., Visit]) -> None:
    there = make_visit(
        oauth_provider="github", oauth_scopes=("read:user", "user:email", "read:org")
    ).browser.set_out()
    assert there.startswith("https://github.com/login/oauth/authorize?")
    assert asked(there)["scope"] == "read:user user:email read:org"
    assert json.dumps(asked(there)).count(SECRET) == 0
