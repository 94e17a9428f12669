"""Attacks by requests of any method, path, headers and body: never a 5xx."""

import json
import string
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bodies import ALL_FIELDS
from support.commands import PASSWORD
from support.paths import filled
from support.web import Site

from usersctl.models import User
from usersd.routes import TABLE

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40)
VALUES = st.recursive(
    SCALARS,
    lambda more: st.lists(more, max_size=3) | st.dictionaries(st.text(max_size=8), more, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(st.sampled_from(sorted(ALL_FIELDS)) | st.text(max_size=8), VALUES, max_size=6)
PATHS = (
    st.sampled_from(sorted({filled(route.path, id="2") for route in TABLE}))
    | st.builds("/api/users/{}".format, st.text(string.ascii_letters + string.digits + "%._-/", max_size=12))
    | st.text(string.printable.strip().replace("#", "").replace(" ", ""), max_size=30).map(lambda text: "/" + text)
)  # fmt: skip
HEADER = st.text([chr(c) for c in range(32, 256) if c != 127], max_size=60)
HEADERS = st.dictionaries(
    st.sampled_from(
        ["Accept", "Authorization", "Content-Type", "Content-Encoding", "Cookie", "Expect", "Forwarded", "If-None-Match", "Origin", "Range",
         "Sec-Fetch-Site", "User-Agent", "X-Forwarded-For", "X-HTTP-Method-Override", "X-Request-Id", "Upgrade", "Via"]
    ),
    HEADER | st.sampled_from(["application/json", "null", "gzip", "cross-site", "same-origin", "127.0.0.1", "Bearer x", "auth_token=x"]),
    max_size=4,
)  # fmt: skip
METHODS = st.sampled_from(["GET", "HEAD", "POST", "PATCH", "DELETE", "PUT", "OPTIONS", "TRACE", "QUERY", "X"])


@pytest.mark.slow
def test_no_request_causes_a_500(open_site: Site) -> None:
    """600 requests or ten seconds, whichever comes first."""
    token = open_site.service.sessions.login("ada@example.com", PASSWORD).token
    until = time.monotonic() + 10

    @given(
        METHODS,
        PATHS,
        st.none() | FIELDS.map(json.dumps).map(str.encode) | st.binary(max_size=200),
        HEADERS,
        st.booleans(),
    )
    @settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
    def attack(method: str, path: str, raw: bytes | None, headers: dict[str, str], signed_in: bool) -> None:
        if time.monotonic() > until:
            return
        sent = {name: value.encode("latin-1").decode("latin-1") for name, value in headers.items()}
        if raw is not None:
            sent.setdefault("Content-Type", "application/json")
        if signed_in:
            sent["Cookie"] = f"auth_token={token}"
        reply = open_site.client().send(method, path, raw=raw, headers=sent)
        assert reply.status < 500
        if reply.status >= 400 and method != "HEAD":
            assert reply.message
        assert reply.header("X-Content-Type-Options") == "nosniff"
        assert reply.header("Server") is None

    attack()
    assert isinstance(open_site.service.accounts.find("ada@example.com"), User)
