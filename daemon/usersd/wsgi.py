"""`usersd.wsgi:application`, for gunicorn, granian and the like: configured by the file and the environment alone."""

import logging
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from usersctl.config.sources import Loaded, load
from usersctl.errors import UsersError
from usersd.log import Forward, Log
from usersd.request import new_request_id
from usersd.response import HSTS, STATUS_LINES, unavailable
from usersd.server.connections import Hosted
from usersd.start import check, first_run, hosted, tell_of_mail

BEGIN_AFTER = 1.0  # seconds without a request
LOOK_EVERY = 0.5


class Application:
    """Begins, with its database and threads, at the first request of a process, or shortly after the process came to be
    where none comes: letters wait for nobody. Only then is it known that no fork follows, as in a server that imports
    the application before it makes its processes. One that forks all the same leaves nothing of ours to its children.
    """

    def __init__(self, loaded: Loaded, log: Log) -> None:
        self._loaded = loaded
        self._log = log
        self._wait_for_the_first_request()
        os.register_at_fork(before=self._end, after_in_child=self._wait_for_the_first_request)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            app = self._begun().app
        except UsersError as error:
            request, answer = new_request_id(), unavailable()
            self._log.event("database", request=request, message=str(error))
            headers = [*answer.headers, ("X-Request-Id", request), ("Content-Length", str(len(answer.body)))]
            if self._loaded.settings.https:
                headers.append(HSTS)
            start_response(STATUS_LINES[503], headers)
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]
        return app(environ, start_response)

    def _wait_for_the_first_request(self) -> None:
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._hosted: Hosted | None = None
        self._ending = threading.Event()
        # Not a daemon: Python waits for it before it ends, and so it can leave in order.
        self._thread = threading.Thread(target=self._live, name="usersd")
        self._thread.start()

    def _begun(self) -> Hosted:
        with self._lock:
            if self._hosted is None:
                settings = self._loaded.settings
                first_run(self._loaded, self._log)
                tell_of_mail(settings, self._log, dev=False)
                self._hosted = self._open.enter_context(hosted(self._loaded, self._log))
                self._log.event("serving", base_url=settings.base_url, process=os.getpid())
            return self._hosted

    def _live(self) -> None:
        wait = BEGIN_AFTER
        while not self._ending.wait(wait) and threading.main_thread().is_alive():
            wait = LOOK_EVERY
            try:
                self._begun()
            except UsersError as error:
                self._log.event("database", message=str(error))
                wait = BEGIN_AFTER
        with self._lock:
            if self._hosted is not None:
                self._hosted.on_stop()
            self._open.close()
            self._hosted = None

    def _end(self) -> None:
        self._ending.set()
        self._thread.join()


def _application() -> Application:
    loaded = load()
    check(loaded)
    log = Log()
    logging.getLogger().addHandler(Forward(log))
    return Application(loaded, log)


application = _application()
