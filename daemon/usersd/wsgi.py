"""`usersd.wsgi:application` for gunicorn, granian and others: configured by file and environment only."""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from usersctl.config.sources import Loaded, load
from usersctl.errors import UsersError
from usersd.log import Forward, Log
from usersd.request import ORIGINAL, new_request_id
from usersd.response import send, unavailable
from usersd.server.connections import Hosted
from usersd.start import check, first_run, hosted, log_mail

NOT_BELIEVED = (
    "Forward authentication does not know the path: "
    "set server.proxyDropsUnderscores if the proxy removes headers with an underscore in their name"
)
START_AFTER = 1.0  # seconds without a request; also between two attempts to start
CHECK_STOP_EVERY = 0.5  # seconds


class Application:
    """Opens the database and starts its threads at a process's first request, or a second after the process started.

    Earlier it cannot know that no fork follows: some servers import the application before they fork. It does not wait
    for a request, because emails are due without one. Before a later fork it closes, so children inherit nothing.
    """

    def __init__(self, loaded: Loaded, log: Log) -> None:
        self._loaded = loaded
        self._log = log
        self._process = 0  # that the lock, the thread and the database belong to
        os.register_at_fork(before=self._close, after_in_child=self._begin)
        uwsgi: Any = sys.modules.get("uwsgi")
        if uwsgi is not None and uwsgi.worker_id() == 0:
            # Its master forks without Python's hooks, and calls this one in each worker.
            uwsgi.post_fork_hook = _both(getattr(uwsgi, "post_fork_hook", None), self._begin)
        else:
            self._begin()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if not self._loaded.settings.proxy_drops_underscores:
            # Some servers read a client's X_Forwarded_Uri as X-Forwarded-Uri, and prefer it to the proxy's.
            for name in ORIGINAL:
                environ.pop(name, None)
        try:
            app = self._started().app
        except UsersError as error:
            request_id = new_request_id()
            self._log.event("database", request=request_id, message=str(error))
            response = unavailable(("X-Request-Id", request_id))
            return send(environ, start_response, response, self._loaded.settings)
        return app(environ, start_response)

    def _begin(self) -> None:
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._hosted: Hosted | None = None
        self._closing = threading.Event()
        # Not a daemon thread: Python waits for it at exit, so that it can close the database.
        self._thread = threading.Thread(target=self._run, name="usersd")
        self._thread.start()

    def _started(self) -> Hosted:
        with self._lock:
            if self._hosted is None:
                settings = self._loaded.settings
                first_run(self._loaded, self._log)
                log_mail(settings, self._log, dev=False)
                if settings.trusted_proxies and not settings.proxy_drops_underscores:
                    self._log.event("not-believed", message=NOT_BELIEVED)
                self._hosted = self._stack.enter_context(hosted(self._loaded, self._log))
                self._log.event("serving", base_url=settings.base_url, process=os.getpid())
            return self._hosted

    def _run(self) -> None:
        wait = START_AFTER
        while not self._closing.wait(wait) and threading.main_thread().is_alive():
            wait = CHECK_STOP_EVERY
            try:
                self._started()
            except UsersError as error:
                self._log.event("database", message=str(error))
                wait = START_AFTER
        with self._lock:
            if self._hosted is not None:
                self._hosted.on_stop()
            self._stack.close()
            self._hosted = None

    def _close(self) -> None:
        if self._process == os.getpid():
            self._closing.set()
            self._thread.join()


def _both(first: Callable[[], object] | None, second: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        if first is not None:
            first()
        second()

    return both


_loaded, _log = load(), Log()
check(_loaded)
logging.getLogger().addHandler(Forward(_log))
application = Application(_loaded, _log)
