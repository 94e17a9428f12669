"""A sample identity provider for --dev, on this machine only: choose a person, consent or cancel.

It is as strict as a real one: a code works once, only with its verifier and only for its redirect URI. A code that comes
twice ends what it was exchanged for (RFC 6749 4.1.2).
"""

import hmac
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode

from usersctl.config import Settings
from usersctl.secrets import challenge_of, new_token
from usersctl.service import Service
from usersd.pages import layout
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


def sample_people() -> dict[str, Person]:
    ada = Person("1001", "ada@example.com", "Ada Lovelace")
    grace = Person("1002", "grace@example.com", "Grace Hopper")
    alan = Person("1003", "alan@example.com", "Alan Turing", email_verified=False)
    return {person.sub: person for person in (ada, grace, alan)}


@dataclass
class SampleProvider:
    base_url: str
    secret: str
    redirect_uri: str
    people: dict[str, Person] = field(default_factory=sample_people)
    claims: dict[str, Any] = field(default_factory=dict)  # more claims of ID tokens
    algorithms: list[str] = field(default_factory=lambda: ["ES256"])  # that it announces for them
    path: str = PATH
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)
    _tokens: dict[str, str] = field(default_factory=dict)
    _exchanged: dict[str, str] = field(default_factory=dict)  # tokens, by the codes that they were given for

    @cached_property
    def key(self) -> Any:
        """It signs ID tokens."""
        from cryptography.hazmat.primitives.asymmetric import ec

        return ec.generate_private_key(ec.SECP256R1())

    @property
    def issuer(self) -> str:
        return self.base_url + self.path

    def settings(self, settings: Settings) -> Settings:
        """The settings of a daemon that signs in here."""
        return settings._replace(
            oauth_client_id=CLIENT,
            oauth_client_secret=self.secret,
            oauth_issuer=self.issuer,
            oauth_allow_auto_registration=True,
        )

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                "GET", f"{self.path}/.well-known/openid-configuration", Access.ANYONE, None, self.discovery
            ),
            Route("GET", f"{self.path}/authorize", Access.ANYONE, None, self.ask),
            Route("GET", f"{self.path}/consent", Access.ANYONE, None, self.consent),
            Route("POST", f"{self.path}/token", Access.ANYONE, None, self.token),
            Route("GET", f"{self.path}/userinfo", Access.ANYONE, None, self.user_info),
            Route("GET", f"{self.path}/keys", Access.ANYONE, None, self.keys),
        )

    def discovery(self, _request: Request, _service: Service) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "jwks_uri": f"{self.issuer}/keys",
            "id_token_signing_alg_values_supported": self.algorithms,
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            "authorization_response_iss_parameter_supported": True,
        }

    def ask(self, request: Request, _service: Service) -> Response:
        params = request.query
        if not self._is_from_client(params):
            return error_response(400, "This provider does not know the client or its redirect URI")
        people = [
            (person, f"{self.path}/consent?{urlencode(params | {'person': person.sub})}")
            for person in self.people.values()
        ]
        cancel = self._callback(params, error="access_denied")
        return layout.page(request, "sample_provider", people=people, cancel=cancel)

    def consent(self, request: Request, _service: Service) -> Response:
        params = request.query
        is_complete = params.get("person") in self.people and params.get("code_challenge_method") == "S256"
        if not self._is_from_client(params) or not is_complete:
            return error_response(400, "This provider does not know the client, the person or the challenge")
        code = new_token()
        self._codes[code] = params
        return redirect_to(self._callback(params, code=code))

    def keys(self, _request: Request, _service: Service) -> Response:
        from jwt.algorithms import ECAlgorithm

        public = ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return as_json({"keys": [public | {"kid": "1", "use": "sig", "alg": "ES256"}]})

    def id_token(self, params: dict[str, str], now: datetime) -> str:
        import jwt

        seconds = int(now.timestamp())
        claims = {
            "iss": self.issuer,
            "sub": params["person"],
            "aud": CLIENT,
            "iat": seconds,
            "exp": seconds + 300,
            "auth_time": seconds,
            "amr": ["pwd"],
        }
        if "nonce" in params:
            claims["nonce"] = params["nonce"]
        return jwt.encode(claims | self.claims, self.key, "ES256", {"kid": "1"})

    def token(self, request: Request, service: Service) -> Response:
        environ = request.environ
        length = min(int(environ.get("CONTENT_LENGTH") or 0), 10_000)
        form = dict(parse_qsl(environ["wsgi.input"].read(length).decode("latin-1")))
        if not self._is_client(request):
            return _token_error(401, "invalid_client")
        params = self._codes.pop(form.get("code", ""), {})
        self._tokens.pop(self._exchanged.pop(form.get("code", ""), ""), None)
        if (
            not params
            or form.get("grant_type") != "authorization_code"
            or form.get("redirect_uri") != params["redirect_uri"]
            or challenge_of(form.get("code_verifier", "")) != params.get("code_challenge")
        ):
            return _token_error(400, "invalid_grant")
        token = new_token()
        self._tokens[token] = params["person"]
        self._exchanged[form["code"]] = token
        answer: dict[str, Any] = {"access_token": token, "token_type": "Bearer", "expires_in": 300}
        if "openid" in params.get("scope", "").split():
            answer["id_token"] = self.id_token(params, service.now())
        return as_json(answer)

    def user_info(self, request: Request, _service: Service) -> Response:
        person = self.people.get(self._tokens.get(request.bearer or "", ""))
        if person is None:
            return _token_error(401, "invalid_token")
        return as_json({claim: value for claim, value in asdict(person).items() if value is not None})

    def _is_from_client(self, params: dict[str, str]) -> bool:
        return params.get("client_id") == CLIENT and params.get("redirect_uri") == self.redirect_uri

    def _callback(self, params: dict[str, str], **result: str) -> str:
        query = result | {"state": params.get("state", ""), "iss": self.issuer}
        return f"{params['redirect_uri']}?{urlencode(query)}"

    def _is_client(self, request: Request) -> bool:
        identity, secret = map(unquote_plus, request.basic or ("", ""))
        return identity == CLIENT and hmac.compare_digest(secret.encode(), self.secret.encode())


def _token_error(status: int, error: str) -> Response:
    """An error of the token endpoint, in the form of RFC 6749."""
    return as_json({"error": error}, status=status)
