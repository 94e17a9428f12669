"""`usersctl serve`: starts the daemon from the configuration."""

import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from usersctl.config.sources import COMMAND_LINE, Loaded, default_files, unread_variables
from usersctl.config.values import is_loopback
from usersctl.errors import Invalid, ServerAway
from usersctl.service import MAKE_AN_ADMIN, Service, build
from usersctl.store.conninfo import Conninfo, shown
from usersctl.store.opening import open_store
from usersd.announce import announce, log_mail
from usersd.app import App
from usersd.background.leader import Leader
from usersd.check import check
from usersd.counters import Counters
from usersd.log import BOLD, CYAN, Forward, Log, in_color, styled
from usersd.routes import TABLE
from usersd.routing import Route
from usersd.server.connections import Hosted
from usersd.server.listener import address_of, listening
from usersd.server.processes import Serving, serve
from usersd.server.systemd import Notifier

if TYPE_CHECKING:
    from usersd.development import Trial

LONGEST_WAIT = 60.0  # seconds for the server of a database; then systemd tries again


def start(
    loaded: Loaded, *, trial: "Trial | None" = None, quiet: bool = False, as_json: bool | None = None
) -> int:
    """Serves until a signal stops it, and returns the exit code."""
    table, behind = TABLE, None
    if trial is not None:
        from usersd.development import for_development  # late: a real installation does without

        loaded, table, behind = for_development(loaded, trial)
    settings = loaded.settings
    check(loaded)
    log = Log(as_json=as_json, quiet=quiet)
    logging.getLogger().addHandler(Forward(log))
    notifier = Notifier.from_environment(os.environ)
    with ExitStack() as stack:
        listener = stack.enter_context(listening(settings, os.environ))
        address = address_of(listener)
        if trial is not None and not is_loopback(address or ""):
            raise Invalid("--dev serves this machine only and does not take a socket that others can reach")
        metrics = None
        if settings.metrics_port is not None:
            # Only a daemon that serves metrics pays for the import.
            from usersd.metrics import measuring

            host, port = settings.metrics_host, settings.metrics_port
            metrics = stack.enter_context(measuring(host, port, table, settings.processes))
        begin = partial(first_run, loaded, log, address=address, at_terminal=sys.stdout.isatty(), trial=trial)
        with notifier.starting():
            when_the_server_is_there(begin, log)
        log_mail(settings, log)
        if unread := unread_variables():
            log.event("unread-variables", message=unread)

        def ready(url: str) -> None:
            log.event("listening", url=url, base_url=settings.base_url, database=shown(settings.database))
            if trial is not None:
                message = f"For other commands on this database: usersctl list{db_option(loaded)}"
                log.event("trial", app=trial.app, message=message)
            if metrics is not None:
                log.event("metrics", url=metrics.url)

        def make(index: int) -> AbstractContextManager[Hosted]:
            count = partial(metrics.of_process, index) if metrics else None
            return hosted(loaded, log, table=table, address=address, count=count, behind=behind)

        code = serve(listener, make, Serving.of(settings), ready, notifier)
    log.event("stopped")
    return code


def admin_command(loaded: Loaded) -> str:
    """The command that makes an admin in this daemon's database."""
    command = MAKE_AN_ADMIN
    if loaded.file is not None and loaded.file not in default_files(os.environ):
        command += f" --config {shlex.quote(str(loaded.file))}"
    return command + db_option(loaded)


def db_option(loaded: Loaded) -> str:
    """What another command, in another shell, needs to find this daemon's database."""
    source, database = loaded.origins["database"].source, loaded.settings.database
    # A conninfo of the environment may have a password, which --db refuses.
    if source != COMMAND_LINE and (source != "USERS_DATABASE" or isinstance(database, Conninfo)):
        return ""
    return f" --db {shlex.quote(shown(database))}"


def when_the_server_is_there(begin: Callable[[], None], log: Log) -> None:
    """After a power cut the server of a database may be there later than the daemon."""
    until, is_logged = time.monotonic() + LONGEST_WAIT, False
    while True:
        try:
            return begin()
        except ServerAway as error:
            if time.monotonic() > until:
                raise
            if not is_logged:
                log.event("waiting", message=str(error))
            is_logged = True
            time.sleep(1)


def first_run(
    loaded: Loaded,
    log: Log,
    *,
    address: str | None = None,
    at_terminal: bool = False,
    trial: "Trial | None" = None,
) -> None:
    """Makes or migrates the database and announces how to make the first admin, before any process is forked.
    `address`: the one that it listens on, if known."""
    store = open_store(loaded.settings.database, create=True)  # raises an error while its server is away
    with closing(build(loaded.settings, store=store, admin_command=admin_command(loaded))) as service:
        is_new = announce(service, log)
        if trial is not None and trial.samples:
            from usersd.development import add_people

            add_people(service)
        if is_new and at_terminal:
            # The link is a secret, so it goes to the terminal and not into the log.
            show_link(service.first_admin.link())
        elif not is_new and loaded.has_default_address and trial is None:
            opens_tasks = ", and its processes run tasks without a session" * is_loopback(address or "")
            message = f"baseUrl is not set, so links lead to this machine{opens_tasks}. "
            log.event("default-address", message=message + "Set it before you put a proxy in front.")


def show_link(link: str) -> None:
    """Set apart from the log, in which it would be overlooked."""
    from shutil import get_terminal_size  # late, and once in the life of a database

    text = "Create the first admin here (the link works once, for 30 minutes):"
    rule = "─" * min(len(text), get_terminal_size().columns)
    if in_color(sys.stdout):
        text, rule = styled(BOLD, text), styled(CYAN, rule)
    sys.stdout.write(f"\n{rule}\n{text}\n\n  {link}\n{rule}\n\n")
    sys.stdout.flush()


@contextmanager
def hosted(
    loaded: Loaded,
    log: Log,
    *,
    address: str | None = None,
    table: tuple[Route, ...] = TABLE,
    count: Callable[[Service], AbstractContextManager[Counters]] | None = None,
    behind: tuple[str, int] | None = None,
) -> Iterator[Hosted]:
    """The application of one process and its background work. `address`: the one that it listens on, if known.
    `behind`: the address of another application, to stand in front of it in development."""
    with ExitStack() as stack:
        store = open_store(loaded.settings.database)
        store.cache_more()

        def parts() -> dict[str, bool]:
            return leader.parts()

        service = build(loaded.settings, store=store, admin_command=admin_command(loaded), parts=parts)
        service.hasher.slots = Serving.of(loaded.settings).slow_threads
        stack.callback(service.close)
        counters = stack.enter_context(count(service)) if count else None
        app = App(service, log=log, listening=address, table=table, counters=counters)
        leader = Leader(service, log=log)
        leader.start()
        stack.callback(leader.stop)

        def begin_to_stop() -> None:
            leader.end()  # it takes its time while the last requests are answered, and not after them
            service.stop()

        daemon = as_hosted(app)._replace(on_stop=begin_to_stop)
        if behind is not None:
            from usersd.dev_proxy import in_front_of

            daemon = in_front_of(behind, app, daemon)
        yield daemon


def as_hosted(app: App) -> Hosted:
    """What the server of one process calls of the application."""
    daemon = Hosted(
        app=app,
        answer=app.answer,
        lane=app.router.lane,
        on_error=app.server_error,
        together=app.service.store.together,
        on_stop=app.service.stop,
    )
    return daemon if app.counters is None else daemon._replace(on_tick=app.counters.tick)
