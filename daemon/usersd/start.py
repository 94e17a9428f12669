"""`usersctl serve`: starts the daemon from the configuration."""

import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from urllib.parse import urlsplit

from usersctl.config import Settings
from usersctl.config.sources import COMMAND_LINE, Loaded, default_files
from usersctl.config.values import is_loopback
from usersctl.errors import Invalid
from usersctl.secrets import new_token
from usersctl.service import MAKE_AN_ADMIN, Service, build
from usersctl.store.store import Store
from usersd.announce import announce, check, log_mail
from usersd.app import App
from usersd.background.leader import Leader
from usersd.counters import Counters
from usersd.dev_provider import SampleProvider
from usersd.log import Forward, Log
from usersd.page_access import REGISTRATION
from usersd.routes import FOR_DEVELOPMENT, TABLE
from usersd.routing import Route
from usersd.server.connections import Hosted
from usersd.server.listener import address_of, listening
from usersd.server.processes import Serving, serve
from usersd.server.systemd import Notifier


def start(loaded: Loaded, *, dev: bool = False, quiet: bool = False, as_json: bool | None = None) -> int:
    """Serves until a signal stops it, and returns the exit code."""
    settings, table = loaded.settings, TABLE
    if dev:
        settings, table = for_development(settings)
        loaded = loaded._replace(settings=settings)
    check(loaded)
    log = Log(as_json=as_json, quiet=quiet)
    logging.getLogger().addHandler(Forward(log))
    notifier = Notifier.from_environment(os.environ)
    with ExitStack() as stack:
        listener = stack.enter_context(listening(settings, os.environ))
        address = address_of(listener)
        if dev and not is_loopback(address or ""):
            raise Invalid("--dev serves this machine only and does not take a socket that others can reach")
        metrics = None
        if settings.metrics_port is not None:
            # Only a daemon that serves metrics pays for the import.
            from usersd.metrics import measuring

            host, port = settings.metrics_host, settings.metrics_port
            metrics = stack.enter_context(measuring(host, port, table, settings.processes))
        first_run(loaded, log, at_terminal=sys.stdout.isatty(), dev=dev)
        log_mail(settings, log, dev=dev)

        def ready(url: str) -> None:
            log.event("listening", url=url, base_url=settings.base_url, database=str(settings.database))
            if metrics is not None:
                log.event("metrics", url=metrics.url)

        def make(index: int) -> AbstractContextManager[Hosted]:
            count = partial(metrics.of_process, index) if metrics else None
            return hosted(loaded, log, table=table, address=address, count=count)

        serving = Serving(threads=settings.threads, processes=settings.processes)
        code = serve(listener, make, serving, ready, notifier)
    log.event("stopped")
    return code


def for_development(settings: Settings) -> tuple[Settings, tuple[Route, ...]]:
    """Settings and routes of --dev: open to everybody on this machine, and closed to others."""
    if not is_loopback(settings.host) or not is_loopback(urlsplit(settings.base_url).hostname or ""):
        raise Invalid(
            f"--dev serves this machine only, not {settings.host} as {settings.base_url}",
            hint="leave --dev out, or --host and --base-url",
        )
    if settings.socket is not None:
        raise Invalid(
            "--dev is for a browser, which cannot open a Unix socket",
            hint="leave --dev out, or add --port 8080",
        )
    # Without a mail server the emails stay in a folder, and /dev/mail shows them.
    settings = settings._replace(whitelist=(*settings.whitelist, REGISTRATION), mailer_host=None, processes=1)
    table = TABLE + FOR_DEVELOPMENT
    if not settings.oauth_client_id:
        provider = SampleProvider(settings.base_url, new_token(), settings.redirect_uri)
        settings = provider.settings(settings)._replace(oauth_label="the sample provider")
        table += provider.routes()
    return settings, table


def admin_command(loaded: Loaded) -> str:
    """The command that makes an admin in this daemon's database."""
    command = MAKE_AN_ADMIN
    if loaded.file is not None and loaded.file not in default_files(os.environ):
        command += f" --config {shlex.quote(str(loaded.file))}"
    if loaded.origins["database"].source == COMMAND_LINE:
        command += f" --db {shlex.quote(str(loaded.settings.database))}"
    return command


def first_run(loaded: Loaded, log: Log, *, at_terminal: bool = False, dev: bool = False) -> None:
    """Makes or migrates the database and announces how to make the first admin, before any process is forked."""
    with closing(build(loaded.settings, admin_command=admin_command(loaded))) as service:
        is_new = announce(service, log)
        if is_new and at_terminal:
            # The link is a secret, so it goes to the terminal and not into the log.
            text = "Create the first admin here (the link works once, for 30 minutes):"
            sys.stdout.write(f"\n{text}\n  {service.first_admin.link()}\n\n")
            sys.stdout.flush()
        elif not is_new and loaded.has_default_address and not dev:
            message = "baseUrl is not set, so links lead to this machine, and its processes run tasks without a session. "
            log.event("default-address", message=message + "Set it before you put a proxy in front.")


@contextmanager
def hosted(
    loaded: Loaded,
    log: Log,
    *,
    address: str | None = None,
    table: tuple[Route, ...] = TABLE,
    count: Callable[[Service], AbstractContextManager[Counters]] | None = None,
) -> Iterator[Hosted]:
    """The application of one process and its background work. `address`: the one that it listens on, if known."""
    with ExitStack() as stack:
        store = Store.open(loaded.settings.database)
        command = admin_command(loaded)

        def parts() -> dict[str, bool]:
            return leader.parts()

        service = build(loaded.settings, store=store, admin_command=command, parts=parts)
        stack.callback(service.close)
        counters = stack.enter_context(count(service)) if count else None
        app = App(service, log=log, listening=address, table=table, counters=counters)
        leader = Leader(service, log=log)
        leader.start()
        stack.callback(leader.stop)
        optional = {"on_tick": counters.tick} if counters else {}
        yield Hosted(
            app=app,
            answer=app.answer,
            lane=app.lane,
            on_error=app.server_error,
            on_stop=service.stop,
            **optional,
        )
