"""A sample identity provider for --dev, on this machine only: choose a person, consent or cancel.

It keeps what it gave in memory, and is strict where a real one is: a code works once, with the verifier that goes with
its challenge, for the redirect URI that it was asked for.
"""

import base64
import hmac
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode

from usersctl.config import Settings
from usersctl.secrets import challenge_of, new_token
from usersctl.service import Service
from usersd.pages import pages
from usersd.request import Request
from usersd.response import Response, as_json, error_response, redirect_to
from usersd.routing import Access, Route

PATH = "/dev/provider"
CLIENT = "dev"


@dataclass
class Person:
    sub: str
    email: str
    name: str
    email_verified: bool = True
    picture: str | None = None


@dataclass
class SampleProvider:
    base_url: str
    secret: str
    redirect_uri: str
    people: dict[str, Person] = field(
        default_factory=lambda: {
            each.sub: each
            for each in (
                Person("1001", "ada@example.com", "Ada Lovelace"),
                Person("1002", "grace@example.com", "Grace Hopper"),
                Person("1003", "alan@example.com", "Alan Turing", email_verified=False),
            )
        }
    )
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)
    _tokens: dict[str, str] = field(default_factory=dict)

    @property
    def issuer(self) -> str:
        return self.base_url + PATH

    def settings(self, settings: Settings) -> Settings:
        """Those of a daemon that signs in here."""
        return settings._replace(
            oauth_client_id=CLIENT,
            oauth_client_secret=self.secret,
            oauth_issuer=self.issuer,
            oauth_allow_auto_registration=True,
        )

    def routes(self) -> tuple[Route, ...]:
        return (
            Route("GET", f"{PATH}/.well-known/openid-configuration", Access.ANYONE, self.discovery),
            Route("GET", f"{PATH}/authorize", Access.ANYONE, self.ask),
            Route("GET", f"{PATH}/consent", Access.ANYONE, self.consent),
            Route("POST", f"{PATH}/token", Access.ANYONE, self.token),
            Route("GET", f"{PATH}/userinfo", Access.ANYONE, self.user_info),
        )

    def discovery(self, _request: Request, _service: Service) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            "authorization_response_iss_parameter_supported": True,
        }

    def ask(self, request: Request, _service: Service) -> Response:
        asked = request.query
        if not self._knows(asked):
            return error_response(400, "This provider does not know who asks")
        people = [
            (person, f"{PATH}/consent?{urlencode(asked | {'person': person.sub})}")
            for person in self.people.values()
        ]
        cancel = self._back(asked, {"error": "access_denied"})
        return pages.sample_provider(request, people=people, cancel=cancel)

    def consent(self, request: Request, _service: Service) -> Response:
        asked = request.query
        is_complete = asked.get("person") in self.people and asked.get("code_challenge_method") == "S256"
        if not self._knows(asked) or not is_complete:
            return error_response(400, "This provider does not know who asks")
        code = new_token()
        self._codes[code] = asked
        return redirect_to(self._back(asked, {"code": code}))

    def token(self, request: Request, _service: Service) -> Response:
        environ = request.environ
        length = min(int(environ.get("CONTENT_LENGTH") or 0), 10_000)
        form = dict(parse_qsl(environ["wsgi.input"].read(length).decode("latin-1")))
        if not self._is_client(environ.get("HTTP_AUTHORIZATION", "")):
            return _refused(401, "invalid_client")
        asked = self._codes.pop(form.get("code", ""), None)
        fits = (
            asked is not None
            and form.get("grant_type") == "authorization_code"
            and form.get("redirect_uri") == asked["redirect_uri"]
            and challenge_of(form.get("code_verifier", "")) == asked.get("code_challenge")
        )
        if asked is None or not fits:
            return _refused(400, "invalid_grant")
        token = new_token()
        self._tokens[token] = asked["person"]
        return as_json({"access_token": token, "token_type": "Bearer", "expires_in": 300})

    def user_info(self, request: Request, _service: Service) -> Response:
        person = self.people.get(self._tokens.get(request.bearer or "", ""))
        if person is None:
            return _refused(401, "invalid_token")
        told = {
            "sub": person.sub,
            "email": person.email,
            "email_verified": person.email_verified,
            "name": person.name,
            "picture": person.picture,
        }
        return as_json({key: value for key, value in told.items() if value is not None})

    def _knows(self, asked: dict[str, str]) -> bool:
        return asked.get("client_id") == CLIENT and asked.get("redirect_uri") == self.redirect_uri

    def _back(self, asked: dict[str, str], told: dict[str, str]) -> str:
        answer = told | {"state": asked.get("state", ""), "iss": self.issuer}
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def _is_client(self, authorization: str) -> bool:
        try:
            decoded = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        except ValueError:
            return False
        identity, _, secret = decoded.partition(":")
        right = hmac.compare_digest(unquote_plus(secret).encode(), self.secret.encode())
        return unquote_plus(identity) == CLIENT and right


def _refused(status: int, error: str) -> Response:
    """In the form of RFC 6749, for here speaks a provider."""
    return as_json({"error": error}, status=status)
