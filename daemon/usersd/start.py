"""`usersctl serve`: from the configuration to a daemon that answers."""

import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from usersctl.config import Settings
from usersctl.config.sources import COMMAND_LINE, Loaded, default_files
from usersctl.config.values import is_loopback
from usersctl.errors import ConfigError, Invalid
from usersctl.first_admin import MAKE_AN_ADMIN
from usersctl.mail import folder, writer
from usersctl.secrets import new_token
from usersctl.service import Service, build
from usersctl.store.store import open_store
from usersd.app import App
from usersd.background.leader import Leader
from usersd.counters import Counters
from usersd.dev_provider import SampleProvider
from usersd.handlers.oauth import callback
from usersd.log import Forward, Log
from usersd.pages import pages
from usersd.paths import REGISTRATION
from usersd.routes import FOR_DEVELOPMENT, TABLE
from usersd.routing import Route
from usersd.server.connections import Hosted, nobody_looks
from usersd.server.listener import address_of, listening
from usersd.server.processes import Serving, serve
from usersd.server.systemd import Notify

if TYPE_CHECKING:
    from usersd.metrics import Metrics


def start(loaded: Loaded, *, dev: bool = False, quiet: bool = False, as_json: bool | None = None) -> int:
    """Serves until it is told to stop; the exit code."""
    settings, table = loaded.settings, TABLE
    if dev:
        settings = for_development(settings)
        table += FOR_DEVELOPMENT
        if not settings.oauth_client_id:
            provider = SampleProvider(settings.base_url, new_token(), settings.redirect_uri)
            settings, table = provider.settings(settings), table + provider.routes()
    loaded = loaded._replace(settings=settings)
    check(loaded)
    log = Log(as_json=as_json, quiet=quiet)
    logging.getLogger().addHandler(Forward(log))
    notify = Notify.from_environment(os.environ)
    with listening(settings, os.environ) as listener, measuring(settings, table) as metrics:
        if dev and not is_loopback(address_of(listener) or ""):
            raise Invalid("--dev serves this machine only, and takes no socket that others may open")
        first_run(loaded, log, at_terminal=sys.stdout.isatty())
        tell_of_mail(settings, log, dev=dev)

        def ready(url: str) -> None:
            log.event("listening", url=url, base_url=settings.base_url, database=str(settings.database))
            if metrics is not None:
                log.event("metrics", url=metrics.url)

        def make(index: int) -> AbstractContextManager[Hosted]:
            measure = partial(metrics.of_process, index) if metrics is not None else None
            return hosted(loaded, log, table=table, address=address_of(listener), measure=measure)

        code = serve(
            listener,
            make,
            Serving(threads=settings.threads, processes=settings.processes),
            ready,
            notify,
        )
    log.event("stopped")
    return code


def for_development(settings: Settings) -> Settings:
    """Open for trying things out, and so for this machine only."""
    if not is_loopback(settings.host) or not is_loopback(urlsplit(settings.base_url).hostname or ""):
        raise Invalid(
            f"--dev serves this machine only, not {settings.host} as {settings.base_url}",
            hint="leave --dev out, or --host and --base-url",
        )
    if settings.socket is not None:
        raise Invalid(
            "--dev is for a browser, which opens no Unix socket", hint="leave --dev out, or add --port 8080"
        )
    # Letters are caught, to be read at /dev/mail.
    return settings._replace(whitelist=(*settings.whitelist, REGISTRATION), mailer_host=None, processes=1)


def check(loaded: Loaded) -> None:
    """What an operator adds is read before anything else is done: a slip shows now and not in the night."""
    settings = loaded.settings
    try:
        writer.Writer(settings).check()
        pages.check(settings)
        if settings.oauth_callback_url in {route.path for route in TABLE if route.handler is not callback}:
            told = f"auth.oauth.callbackUrl = {settings.oauth_callback_url!r}"
            raise ConfigError(f"{told}: this path is another page of ours; choose one that is free")
    except ConfigError as error:
        origin = loaded.origins.get(str(error).partition(" = ")[0])  # where a key is told, and not a file
        if origin is None:
            raise
        raise ConfigError(f"{origin.source}: {error}", hint=error.hint) from None


def make_an_admin(loaded: Loaded) -> str:
    """The command, for this database and no other."""
    command = MAKE_AN_ADMIN
    if loaded.file is not None and loaded.file not in default_files(os.environ):
        command += f" --config {shlex.quote(str(loaded.file))}"
    if loaded.origins["database"].source == COMMAND_LINE:
        command += f" --db {shlex.quote(str(loaded.settings.database))}"
    return command


def first_run(loaded: Loaded, log: Log, *, at_terminal: bool = False) -> None:
    """Makes or migrates the database, and helps to the first admin. Over before any process is forked."""
    service = build(loaded.settings)
    try:
        migrated = service.store.migrated
        if migrated is not None:
            log.event("migrated", accounts=migrated.accounts, backup=str(migrated.backup))
            for note in migrated.notes:
                log.event("migrated", message=note)
        made = service.first_admin.from_environment(os.environ)
        if made is not None:
            log.event("first-admin", user=made.id, email=made.email)
        if service.first_admin.needed():
            log.event("no-admin", message=f"There is no admin yet. Make one with: {make_an_admin(loaded)}")
            if at_terminal:
                # To the terminal and not to the log: it opens the house for half an hour.
                told = "Create the first admin here (works once, for 30 minutes):"
                sys.stdout.write(f"\n{told}\n  {service.first_admin.link()}\n\n")
                sys.stdout.flush()
    finally:
        service.close()


def tell_of_mail(settings: Settings, log: Log, *, dev: bool) -> None:
    """Where letters go."""
    if dev:
        log.event("mail", caught_at=f"{settings.base_url}/dev/mail")
    elif settings.mailer_host is None:
        log.event(
            "mail",
            message="No mail server: letters are laid into a folder",
            folder=str(folder.mail_folder(settings)),
        )


def measuring(settings: Settings, table: tuple[Route, ...]) -> "AbstractContextManager[Metrics | None]":
    if settings.metrics_port is None:
        return nullcontext()
    from usersd import metrics  # late: only who wants figures pays for them

    return metrics.measuring(settings.metrics_host, settings.metrics_port, table, settings.processes)


@contextmanager
def hosted(
    loaded: Loaded,
    log: Log,
    *,
    address: str | None = None,
    table: tuple[Route, ...] = TABLE,
    measure: Callable[[Service], AbstractContextManager[Counters]] | None = None,
) -> Iterator[Hosted]:
    """What one process serves. `address`: what it listens at, where that is known."""
    service = build(loaded.settings, store=open_store(loaded.settings.database))
    service = replace(service, first_admin=replace(service.first_admin, command=make_an_admin(loaded)))
    with closing(service), measure(service) if measure is not None else nullcontext() as counters:
        app = App(service, log=log, listening=address, table=table, counters=counters)
        caretaker = Leader(service, log=log)
        service.readiness.parts |= {
            "worker": caretaker.sends_letters,
            "scheduler": caretaker.keeps_the_schedule,
        }
        caretaker.start()
        try:
            yield Hosted(
                app=app,
                lane=app.lane,
                refuse=app.refuse,
                on_stop=service.stop,
                on_look=counters.look if counters is not None else nobody_looks,
            )
        finally:
            caretaker.stop()
