"""The words of the snippets for proxies: where the proxy listens, what it protects, which headers it sets and strips."""

import re
from collections.abc import Iterable, Sequence
from textwrap import fill
from urllib.parse import SplitResult, urlsplit

from usersctl.config import Settings
from usersctl.config.values import BadValue, bracketed, connectable_host, is_loopback, origin_of
from usersctl.errors import Invalid
from usersctl.identity_headers import ASSERTION, BEGINNINGS, KINDS, known_names, problem_with, spellings
from usersctl.named import NamedTuple

TRIAL = "http://localhost:8090"  # of a proxy whose address nobody has configured
APPLICATIONS = ("http://127.0.0.1:8000", "http://127.0.0.1:5000")  # the second where the proxy has the first
PORTS = {"http": 80, "https": 443}

Names = tuple[tuple[str, str], ...]  # of headers, each with what it holds


def application_at(address: str) -> str:
    """The origin of what --app names: a URL, or host and port."""
    origin = _origin(address)
    if not origin:
        raise Invalid(
            f"--app {address!r} is no address of an application",
            hint="such as 127.0.0.1:8000 or http://127.0.0.1:8000, without a path",
        )
    return origin


def daemon_at(address: str) -> str:
    """What --daemon names, as an upstream."""
    origin = "" if "://" in address else _origin(address)
    if not origin:
        raise Invalid(f"--daemon {address!r} is no address with a port", hint="such as 10.0.0.5:8080")
    return origin.removeprefix("http://")


def _origin(address: str) -> str:
    """Of a URL, or of a host with its port; empty if the address is neither."""
    is_url = "://" in address
    if not is_url and not re.search(r":[0-9]+/?$", address):
        return ""
    try:
        return origin_of(address if is_url else f"http://{address}")
    except BadValue:
        return ""


def balanced(daemons: Sequence[str]) -> dict[str, str]:
    """The words for the upstreams: of several, one that fails is left out for some seconds."""
    if len(daemons) == 1:
        alone = f"    server {daemons[0]};"
        return {"nginx_servers": alone} | dict.fromkeys(_OF_SEVERAL, "")
    servers = [
        "    zone usersd 64k;",
        *(f"    server {each} max_fails=2 fail_timeout=5s;" for each in daemons),
    ]
    lines, once = ("".join(f"\n\t\t\t\t{line}" for line in some) for some in (_CADDY_BALANCE, _CADDY_ONCE))
    return {
        "nginx_servers": "\n".join(servers),
        "nginx_tries": _NGINX_TRIES,
        "caddy_changes": _CADDY_CHANGES.format(daemons=" ".join(daemons), once=once),
        "caddy_balance": lines,
        "caddy_balanced": f" {{{lines}\n\t\t\t}}",
        "caddy_errors": _CADDY_ERRORS,
    }


def header_names(texts: Iterable[str]) -> Names:
    """What --header says, each NAME=KIND."""
    names: list[tuple[str, str]] = []
    for text in texts:
        name, equals, kind = text.partition("=")
        if not equals or kind not in KINDS:
            hint = f"such as X-Remote-User=email; the second is one of {', '.join(KINDS)}"
            raise Invalid(f"--header {text!r} is not a name and what it holds", hint=hint)
        names.append((name, kind))
    if problem := problem_with(name for name, _ in names):
        raise Invalid(f"--header: {problem}")
    return tuple(names)


class Front(NamedTuple):
    """A proxy in front of the daemon and of an application."""

    settings: Settings
    url: str  # where visitors come
    app: str | None  # the origin of the application, if it is named
    more_names: Names  # of identity headers, beside forward.headers or in their place
    in_container: bool = False

    @property
    def address(self) -> SplitResult:
        return urlsplit(self.url)

    @property
    def host(self) -> str:
        return bracketed(self.address.hostname or "")

    @property
    def is_local(self) -> bool:
        return is_loopback(self.address.hostname or "") and not self.in_container

    @property
    def port(self) -> int:
        return port_of(self.address)

    @property
    def https(self) -> bool:
        return self.address.scheme == "https"

    @property
    def application(self) -> str:
        if self.app is None:
            return APPLICATIONS[self._is_at(APPLICATIONS[0])]
        if self._is_at(self.app):
            raise Invalid(
                f"{self.app} is the address of the proxy itself", hint="see baseUrl, and choose another"
            )
        return self.app

    def refuse_address_of_daemon(self) -> None:
        listens = connectable_host(self.settings.host), self.settings.port
        is_taken = is_loopback(listens[0]) and listens[1] == self.port and self.settings.socket is None
        if self.is_local and is_taken:
            raise Invalid(
                f"baseUrl {self.url} is where the daemon itself listens",
                hint=f"set baseUrl to where visitors come, such as https://accounts.example.com, or {TRIAL} to try it",
            )

    def _is_at(self, url: str) -> bool:
        """Whether the proxy listens at this address of this machine."""
        other = urlsplit(url)
        return self.is_local and is_loopback(other.hostname or "") and port_of(other) == self.port

    # --- identity headers ---

    @property
    def names(self) -> Names:
        """The headers that the application gets."""
        instead = {name.lower() for name, _ in self.more_names}
        kept = (pair for pair in self.settings.forward_headers if pair[0].lower() not in instead)
        return (*kept, *self.more_names)

    @property
    def sources(self) -> dict[str, str]:
        """The header of the daemon's answer for each kind."""
        sent = {kind: name for name, kind in reversed(self.settings.forward_headers)}
        for _, kind in self.names:
            if kind not in sent:
                hint = f'add a header for it, such as [forward.headers] "Remote-{kind.title()}" = "{kind}"'
                raise Invalid(f"forward.headers has no {kind}", hint=hint)
        return sent

    @property
    def stripped(self) -> list[str]:
        """Every name that no visitor may send, those that the application gets included."""
        by_key = {name.lower(): name for name in known_names()}
        by_key |= {name.lower(): name for name, _ in (*self.settings.forward_headers, *self.more_names)}
        return sorted(by_key.values(), key=str.lower)

    # --- words ---

    def words(self) -> dict[str, str]:
        mark = " # <--" if self.app is None else ""
        common = {"front_url": self.url, "server_name": self.host, "app": self.application, "app_mark": mark}
        return common | self._for_nginx() | self._for_caddy() | self._for_traefik()

    def _for_nginx(self) -> dict[str, str]:
        sent, sources = {name.lower() for name, _ in self.names}, self.sources
        stripped = [name for name in self.stripped if name.lower() not in sent]
        stripped += [one for name in (*dict(self.names), ASSERTION) for one in spellings(name)[1:]]
        strips = [f'proxy_set_header {name} "";' for name in stripped]
        identity = [f"    proxy_set_header {name:<18} $users_{kind};" for name, kind in self.names]
        kinds = [kind for kind in KINDS if kind in {kind for _, kind in self.names}]
        answer = [
            f"    auth_request_set {f'$users_{kind}':<20} $upstream_http_{sources[kind].lower().replace('-', '_')};"
            for kind in kinds
        ]
        return {
            "nginx_redirect": _NGINX_REDIRECT.format(host=self.host, url=self.url) if self.https else "",
            "nginx_listen": self._nginx_listen(),
            "nginx_tls": _NGINX_TLS.format(host=self.host) if self.https else "",
            "nginx_app_tls": _NGINX_APP_TLS if self.application.startswith("https:") else "",
            "nginx_strips": in_lines(strips, "    "),
            "nginx_identity": "\n".join(identity),
            "nginx_answer": "\n".join(answer),
        }

    def _nginx_listen(self) -> str:
        ssl = " ssl" * self.https
        if self.is_local:
            address = self.host.replace("localhost", "127.0.0.1")
            return f"    listen {address}:{self.port}{ssl};"
        return f"    listen {self.port}{ssl};\n    listen [::]:{self.port}{ssl};"

    def _for_caddy(self) -> dict[str, str]:
        sources = self.sources
        patterns = [f"{beginning}-*" for beginning in BEGINNINGS if beginning != "X-Auth"]
        beginnings = tuple(pattern.lower().removesuffix("*") for pattern in patterns)
        strips = [*patterns, *(name for name in self.stripped if not name.lower().startswith(beginnings))]
        identity = [
            f"request_header {name} {{http.reverse_proxy.header.{sources[kind]}}}"
            for name, kind in self.names
        ]
        needed = [f"header {name} *" for name in dict.fromkeys(sources[kind] for _, kind in self.names)]
        bind = self.address.hostname or ""
        return {
            "caddy_site": self.url.removeprefix("https://"),
            "caddy_bind": f"\tbind {bind.replace('localhost', '127.0.0.1')}\n" * self.is_local,
            "caddy_strips": "\n".join(f"\t\trequest_header -{name}" for name in strips),
            "caddy_identity": "\n".join("\t" * 5 + line for line in identity),
            "caddy_needed": "\n".join("\t" * 5 + line for line in [*needed, f"header {ASSERTION} *"]),
        }

    def _for_traefik(self) -> dict[str, str]:
        entry = "      entryPoints: [web] # <--"
        if self.https:
            entry = "      entryPoints: [websecure] # <--\n      tls: {certResolver: letsencrypt} # <--"
        sent = {(name.lower(), kind) for name, kind in self.settings.forward_headers}
        missing = [f'"{name}" = "{kind}"' for name, kind in self.names if (name.lower(), kind) not in sent]
        needs = ""
        if missing:
            needs = f"\n# Traefik renames no header, so usersd has to send them so: [forward.headers] {', '.join(missing)}"
        known = {name.lower() for name, _ in self.names} | {ASSERTION.lower()}
        strips = [
            f'{spelling}: "",'
            for name in (*self.stripped, ASSERTION)
            # With dots those only that the application expects: the file would be too long.
            for spelling in spellings(name, "-_." if name.lower() in known else "-_")
        ]
        return {
            "traefik_needs": needs,
            "traefik_entry": entry,
            "traefik_strips": in_lines(strips, " " * 10),
            "traefik_identity": "\n".join(f"          - {name}" for name, _ in self.names),
        }


_NGINX_TRIES = """\
    # A request goes to the next daemon if one cannot be reached, and has not got it yet.
    proxy_connect_timeout 2s;

"""
_OF_SEVERAL = ("nginx_tries", "caddy_changes", "caddy_balance", "caddy_balanced", "caddy_errors")
_CADDY_ERRORS = """\
	# While no daemon is ready, for example without their database.
	handle_errors {
		@away expression {err.status_code} == 503
		header @away Retry-After 5
		header @away Content-Type application/json
		respond @away `{"statusCode":503,"statusMessage":"The service is not available right now, please try again"}`
		respond "{err.status_code} {err.status_text}"
	}
"""
# If Caddy before 2.11.2 reaches no daemon, the body is gone at the next try, and it leaves out the daemon of that try, too:
# https://github.com/caddyserver/caddy/issues/7546
_CADDY_CHANGES = """\
			# A change goes to one daemon only: Caddy before 2.11.2 cannot send its body to the next one.
			@change not method GET HEAD
			reverse_proxy @change {daemons} {{{once}
			}}
"""
_CADDY_ONCE = (
    "health_uri /ready",
    "health_interval 2s",
    "health_timeout 3s",
    "fail_duration 5s",
)
_CADDY_BALANCE = (
    "# To those that are ready; to the next one if one cannot be reached.",
    *_CADDY_ONCE,
    "lb_try_duration 3s",
)
_NGINX_REDIRECT = """\
server {{
    listen 80;
    listen [::]:80;
    server_name {host};
    return 301 {url}$request_uri;
}}

"""
_NGINX_TLS = """\
    ssl_certificate     /etc/letsencrypt/live/{host}/fullchain.pem; # <--
    ssl_certificate_key /etc/letsencrypt/live/{host}/privkey.pem;   # <--
"""
_NGINX_APP_TLS = """
        proxy_ssl_server_name on;
        proxy_ssl_verify on;
        proxy_ssl_verify_depth 4;
        proxy_ssl_trusted_certificate /etc/ssl/certs/ca-certificates.crt;"""


def port_of(address: SplitResult) -> int:
    return address.port or PORTS[address.scheme]


def in_lines(words: list[str], indent: str) -> str:
    """As many of them in a line as fit."""
    whole = " ".join(word.replace(" ", "\0") for word in words)
    return fill(whole, 118, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False).replace("\0", " ")  # fmt: skip
