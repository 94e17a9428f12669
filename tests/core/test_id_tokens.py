"""ID tokens: which are believed, asked of the core, and of a whole sign-in."""

import base64
import hmac
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from support.fakes import FakeClock
from support.hostile import DISCOVERY, Hostile, answer, hostile
from support.oauth_site import Browser, answered, asked, error_of
from support.web import Site, running

from usersctl.errors import SignInRefused
from usersctl.oauth.id_token import ALGORITHMS, LEEWAY, OLDEST, Claims, Expected, checked
from usersctl.service import Service

NOW = datetime(2026, 11, 20, 8, 22, 19, tzinfo=UTC)
SECONDS = int(NOW.timestamp())
EXPECTED = Expected("client-77", NOW, nonce="n-1", issuer="https://id.example")
CLAIMS: dict[str, Any] = {
    "iss": "https://id.example",
    "sub": "1001",
    "aud": "client-77",
    "nonce": "n-1",
    "iat": SECONDS,
    "exp": SECONDS + 300,
}


@cache
def private_key(name: str) -> Any:
    makes: dict[str, Callable[[], Any]] = {
        "rsa": lambda: rsa.generate_private_key(65537, 2048),
        "another rsa": lambda: rsa.generate_private_key(65537, 2048),
        "short rsa": lambda: rsa.generate_private_key(65537, 1024),  # noqa: S505 - it is refused
        "ec": lambda: ec.generate_private_key(ec.SECP256R1()),
        "ed": ed25519.Ed25519PrivateKey.generate,
    }
    return makes[name]()


def jwk(name: str, **more: Any) -> dict[str, Any]:
    kind = {"ec": ECAlgorithm, "ed": OKPAlgorithm}.get(name, RSAAlgorithm)
    return {"kid": name, **kind.to_jwk(private_key(name).public_key(), as_dict=True), **more}


def signed(algorithm: str = "ES256", by: str = "ec", **claims: Any) -> str:
    payload = {name: value for name, value in (CLAIMS | claims).items() if value is not ...}
    # As bytes, because PyJWT writes no claim of a wrong type.
    return jwt.api_jws.encode(json.dumps(payload).encode(), private_key(by), algorithm, {"kid": by})


def unsigned(header: dict[str, Any], payload: Any = CLAIMS, signature: str = "") -> str:
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (header, payload)
    ]
    return ".".join([*parts, signature])


class Keys:
    """A key set that counts how often it is fetched."""

    def __init__(self, *first: dict[str, Any], then: tuple[dict[str, Any], ...] | None = None) -> None:
        self.cached, self.published = list(first), list(first if then is None else then)
        self.fetched = 0

    def __call__(self, *, fresh: bool) -> list[dict[str, Any]]:
        if fresh:
            self.fetched += 1
            self.cached = self.published
        return self.cached


def refusal(token: Any, expected: Expected = EXPECTED, keys: Keys | None = None) -> str:
    with pytest.raises(SignInRefused) as refused:
        checked(token, expected, keys or Keys(jwk("ec"), jwk("rsa"), jwk("ed")))
    assert refused.value.reason == "oauth_failed"
    return str(refused.value)


# --- the signature ---


@pytest.mark.parametrize(("algorithm", "by"), [("RS256", "rsa"), ("PS256", "rsa"), ("RS512", "rsa"), ("ES256", "ec"), ("EdDSA", "ed")])  # fmt: skip
def test_a_token_signed_by_a_published_key_is_believed(algorithm: str, by: str) -> None:
    keys = Keys(jwk("ec"), jwk("rsa"), jwk("ed"))
    assert checked(signed(algorithm, by), EXPECTED, keys) == Claims("1001", None, None)
    assert keys.fetched == 0


@pytest.mark.parametrize("header", [{"alg": "none"}, {"alg": "None"}, {"alg": "HS256"}, {"alg": ""}, {"alg": None}, {"alg": ["RS256"]}, {}])  # fmt: skip
def test_a_token_without_a_signature_of_a_key_pair_is_refused(header: dict[str, Any]) -> None:
    assert "ID token" in refusal(unsigned({"typ": "JWT", "kid": "ec", **header}))
    assert "ID token" in refusal(unsigned(header), EXPECTED._replace(issuer=None))


def test_a_token_signed_with_the_clients_secret_or_the_public_key_as_a_secret_is_refused() -> None:
    for secret in (b"the secret of the client, long enough", json.dumps(jwk("rsa")).encode()):
        head = unsigned({"alg": "HS256", "kid": "rsa"}).rpartition(".")[0]
        mac = base64.urlsafe_b64encode(hmac.digest(secret, head.encode(), "sha256")).decode().rstrip("=")
        for key in (jwk("rsa"), jwk("rsa", alg="HS256"), {"kty": "oct", "k": "eA", "kid": "rsa"}):
            assert "HS256" in refusal(f"{head}.{mac}", keys=Keys(key))


def test_only_the_announced_algorithms_are_believed() -> None:
    announced = EXPECTED._replace(algorithms=("RS256",))
    checked(signed("RS256", "rsa"), announced, Keys(jwk("rsa")))
    assert "'ES256', and not with RS256" in refusal(signed(), announced)
    assert "and not with none of ours" in refusal(signed(), EXPECTED._replace(algorithms=()))


def test_a_signature_that_no_published_key_made_is_refused() -> None:
    token = signed("RS256", "rsa")
    for key in (
        {},
        jwk("another rsa", kid="rsa"),
        jwk("ec", kid="rsa"),
        jwk("rsa", use="enc"),
        jwk("rsa", alg="RS512"),
        jwk("rsa", kid="other"),
        jwk("rsa", n="AA"),
        jwk("rsa", e=None),
        jwk("rsa", kty="EC"),
        jwk("rsa", kty=["RSA"]),
        {"kid": "rsa", "kty": "oct", "k": "AAAA"},
    ):
        assert "no key" in refusal(token, keys=Keys(key)), key
    assert "no key" in refusal(token, keys=Keys())


def test_a_private_key_is_not_read_because_that_can_take_hours() -> None:
    token, number = signed("RS256", "rsa"), base64.urlsafe_b64encode(b"\xff" * 1024).decode().rstrip("=")
    began = time.process_time()
    assert "no key" in refusal(token, keys=Keys(jwk("rsa", n=number, d=number)))
    assert time.process_time() - began < 0.5
    assert "no key" in refusal(signed(), keys=Keys(jwk("ec", d="AQ")))


def test_a_short_key_is_refused() -> None:
    with pytest.warns(Warning, match="below the minimum"):
        token = signed("RS256", "short rsa")
    assert "no key" in refusal(token, keys=Keys(jwk("short rsa")))


def test_a_changed_token_is_refused() -> None:
    head, body, signature = signed().split(".")
    other = signed(sub="1002").split(".")
    for changed in (
        f"{head}.{other[1]}.{signature}",
        f"{head}.{body}.{other[2]}",
        f"{head}.{body}.",
        f"{head}.{body}",
    ):
        refusal(changed)


def test_the_log_says_that_a_token_is_encrypted_or_not_signed() -> None:
    encrypted = unsigned({"alg": "dir", "enc": "A128CBC-HS256"}) + "..x"
    assert refusal(encrypted) == "the ID token is encrypted, and only a signed one is read"
    bare = unsigned({"alg": "none"}).removesuffix(".")
    assert refusal(bare) == "the ID token is not signed, and only a signed one is read"


def test_an_unknown_key_is_looked_for_once_more() -> None:
    keys = Keys(jwk("rsa"), then=(jwk("rsa"), jwk("ec")))
    checked(signed(), EXPECTED, keys)
    assert keys.fetched == 1
    unknown = Keys(jwk("rsa"))
    assert "no key" in refusal(signed(), keys=unknown)
    assert unknown.fetched == 1


def test_a_token_that_names_no_key_may_be_of_any_published_one() -> None:
    token = jwt.encode(CLAIMS, private_key("ec"), "ES256")
    checked(token, EXPECTED, Keys(jwk("rsa"), jwk("ed"), jwk("ec")))
    assert "no key" in refusal(token, keys=Keys(jwk("rsa"), jwk("ed")))


@pytest.mark.parametrize("token", [None, 5, [], {}, "", "x", "a.b.c", ".", "..", "ä.ö.ü", "\ud800", "a" * 100_000, "." * 1000,
                                   unsigned({"alg": "ES256", "crit": ["x"]}), unsigned({"alg": "ES256", "b64": False, "crit": ["b64"]}),
                                   unsigned({"alg": "ES256"}, []), unsigned({"alg": "ES256"}, None), unsigned({"alg": "ES256"}, "x")], ids=lambda token: repr(token)[:30])  # fmt: skip
def test_a_malformed_token_is_refused(token: Any) -> None:
    refusal(token)


# --- the claims ---

WRONG: list[tuple[str, Any]] = [
    *(("iss", value) for value in (..., None, "", "https://id.example/", "https://ID.example", "https://evil.example", ["https://id.example"])),
    *(("aud", value) for value in (..., None, "", "client-7", "client-77 ", [], ["other"], {"client-77": 1}, 5)),
    *(("nonce", value) for value in (..., None, "", "n-2", "\ud800", 5, ["n-1"])),
    *(("exp", value) for value in (..., None, "tomorrow", SECONDS - 61, -1, 10**300, True, float("inf"))),
    *(("iat", value) for value in (..., None, "now", SECONDS + 61, SECONDS - 661, 0, 10**300, True)),
    *(("nbf", value) for value in (None, "now", SECONDS + 61, -1, 10**300, True)),
    *(("azp", value) for value in (None, "", "other", ["client-77"])),
]  # fmt: skip


@pytest.mark.parametrize(("claim", "value"), WRONG, ids=lambda part: repr(part)[:30])
def test_a_wrong_claim_is_refused(claim: str, value: Any) -> None:
    reason = refusal(signed(**{claim: value}))
    assert reason.startswith(f"the ID token has a wrong {claim}")
    assert "n-1" not in reason


def test_several_audiences_need_the_client_as_the_authorized_party() -> None:
    both = ["client-77", "other"]
    keys = Keys(jwk("ec"))
    assert "azp" in refusal(signed(aud=both))
    assert "azp" in refusal(signed(aud=both, azp="other"))
    checked(signed(aud=both, azp="client-77"), EXPECTED, keys)
    checked(signed(aud=["client-77"]), EXPECTED, keys)
    checked(signed(azp="client-77"), EXPECTED, keys)


def test_the_clocks_may_differ_by_a_minute() -> None:
    for now in (NOW - LEEWAY, NOW + timedelta(seconds=300) + LEEWAY - timedelta(seconds=1)):
        checked(signed(nbf=SECONDS), EXPECTED._replace(now=now), Keys(jwk("ec")))
        checked(signed(), EXPECTED._replace(now=now), Keys(jwk("ec")))
    late = signed(exp=SECONDS + 10**6)
    checked(late, EXPECTED._replace(now=NOW + OLDEST + LEEWAY), Keys(jwk("ec")))


def test_a_provider_without_discovery_is_believed_without_a_key_but_not_without_the_claims() -> None:
    by_hand = EXPECTED._replace(issuer=None)
    token = signed(iss="https://whatever.it.calls.itself")
    assert checked(token, by_hand, None).subject == "1001"
    for claim, value in (("aud", "other"), ("nonce", "n-2"), ("exp", SECONDS - 100)):
        with pytest.raises(SignInRefused, match=claim):
            checked(signed(**{claim: value}), by_hand, None)
    with pytest.raises(SignInRefused, match="'none'"):
        checked(unsigned({"alg": "none"}), by_hand, None)


@pytest.mark.parametrize(
    ("auth_time", "stored"),
    [
        (SECONDS - 3600, "2026-11-20T07:22:19.000Z"),
        (SECONDS + 30, "2026-11-20T08:22:19.000Z"),
        (SECONDS + 3600, None),
        (1.5, "1970-01-01T00:00:01.500Z"),
        ("now", None),
        (True, None),
        (-1, None),
        (10**300, None),
        (..., None),
    ],
)
def test_the_time_of_the_sign_in_is_kept(auth_time: Any, stored: str | None) -> None:
    assert checked(signed(auth_time=auth_time), EXPECTED, Keys(jwk("ec"))).auth_time == stored


@pytest.mark.parametrize(
    ("amr", "stored"),
    [
        (["pwd", "otp"], "pwd otp"),
        (["pwd", "pwd"], "pwd"),
        (["a b", "x\ny", "", "ä", 5, None, "x" * 65, "hwk"], "hwk"),
        ([str(number) for number in range(500)], "0 1 2 3 4 5 6 7 8 9"),
        ([], None),
        ("pwd", None),
        ({"pwd": 1}, None),
        (..., None),
    ],
)
def test_the_methods_of_the_sign_in_are_kept_cleaned(amr: Any, stored: str | None) -> None:
    assert checked(signed(amr=amr), EXPECTED, Keys(jwk("ec"))).amr == stored


# --- a whole sign-in ---


class Visit:
    """A site at a provider of ID tokens, and a browser that returns with a code at once."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.browser = Browser(site.service.settings.base_url, site.client())

    def set_out(self) -> tuple[str, str]:
        """The address at the provider, and the nonce in it."""
        there = self.browser.set_out()
        return there, asked(there)["nonce"]

    def why(self) -> str:
        return str([line["why"] for line in self.site.log if line["event"] == "oauth-refused"][-1])


@pytest.fixture
def provider() -> Iterator[Hostile]:
    with hostile() as server:
        server.discovery["jwks_uri"] = f"{server.url}/keys"
        server.answers["/keys"] = answer({"keys": [jwk("ec"), "no key"]})
        yield server


@pytest.fixture
def visit(make_service: Callable[..., Service], provider: Hostile) -> Iterator[Visit]:
    service = make_service(
        oauth_client_id="client-77",
        oauth_client_secret="secret",
        oauth_issuer=provider.url,
        oauth_allow_auto_registration=True,
    )
    with running(service) as site:
        yield Visit(site)


def granting(provider: Hostile, clock: FakeClock, nonce: str, **claims: Any) -> None:
    seconds = int(clock.now.timestamp())
    values = {"iss": provider.url, "nonce": nonce, "iat": seconds, "exp": seconds + 300} | claims
    provider.token["id_token"] = signed(**values)


def test_a_session_keeps_when_and_how_the_provider_signed_the_user_in(
    visit: Visit, provider: Hostile, clock: FakeClock
) -> None:
    there, nonce = visit.set_out()
    granting(provider, clock, nonce, auth_time=int(clock.now.timestamp()) - 60, amr=["pwd", "otp"])
    assert visit.browser.client.get(answered(there)).header("Location") == "/"
    assert [request.path for request in provider.arrived] == [DISCOVERY, "/token", "/keys", "/userinfo"]
    with visit.site.service.store.read() as tx:
        kept = tx._run("SELECT auth_time, amr FROM auth_tokens").fetchall()
    assert [tuple(row) for row in kept] == [("2026-11-20T08:21:19.000Z", "pwd otp")]
    # The keys are kept as long as the discovery document.
    there, nonce = visit.set_out()
    granting(provider, clock, nonce)
    assert visit.browser.client.get(answered(there)).header("Location") == "/"
    assert len(provider.asked("/keys")) == 1


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"nonce": "of another sign-in"}, "nonce"),
        ({"iss": "https://evil.example"}, "iss"),
        ({"aud": "other"}, "aud"),
        ({"exp": 1}, "exp"),
        ({"sub": "1002"}, "different persons"),
        ({"sub": None}, "different persons"),
    ],
)
def test_a_wrong_id_token_ends_the_sign_in(
    visit: Visit, provider: Hostile, clock: FakeClock, claims: dict[str, Any], reason: str
) -> None:
    there, nonce = visit.set_out()
    granting(provider, clock, **({"nonce": nonce} | claims))
    assert error_of(visit.browser.client.get(answered(there))) == "oauth_failed"
    assert reason in visit.why()
    assert visit.browser.me() is None


def test_an_id_token_that_cannot_be_checked_ends_the_sign_in(
    visit: Visit, provider: Hostile, clock: FakeClock
) -> None:
    for keys in (answer({}, status="500 Oops"), answer([]), answer({"keys": {}}), answer({"keys": []})):
        provider.answers["/keys"] = keys
        there, nonce = visit.set_out()
        granting(provider, clock, nonce)
        assert error_of(visit.browser.client.get(answered(there))) == "oauth_failed"
    for odd in (5, "", "x.y.z", [], {}):
        there, _ = visit.set_out()
        provider.token["id_token"] = odd
        assert error_of(visit.browser.client.get(answered(there))) == "oauth_failed"
    del provider.discovery["jwks_uri"]
    clock.move(hours=2)
    there, nonce = visit.set_out()
    granting(provider, clock, nonce)
    assert error_of(visit.browser.client.get(answered(there))) == "oauth_failed"
    assert "jwks_uri" in visit.why()
    assert [line for line in visit.site.log if line["event"] in ("error", "library")] == []


def test_the_algorithms_of_the_discovery_document_are_the_believed_ones(
    visit: Visit, provider: Hostile, clock: FakeClock
) -> None:
    for announced, comes_in in (
        (["RS256", "HS256"], False),
        (["HS256"], False),
        ("ES256", False),
        (["ES256", 5], True),
    ):
        provider.discovery["id_token_signing_alg_values_supported"] = announced
        clock.move(hours=2)
        there, nonce = visit.set_out()
        granting(provider, clock, nonce)
        reply = visit.browser.client.get(answered(there))
        assert (reply.header("Location") == "/") == comes_in, announced
    assert set(ALGORITHMS).isdisjoint({"none", "HS256", "HS384", "HS512"})
