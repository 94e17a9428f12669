"""`usersd.wsgi:application` for gunicorn, granian and others: configured by file and environment only."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from usersctl.config.sources import Loaded, load
from usersctl.errors import UsersError
from usersd.announce import log_mail, log_missing_metrics
from usersd.check import check
from usersd.embedded import Embedded
from usersd.log import Forward, Log
from usersd.request import drop_original, new_request_id
from usersd.response import send_refusal, unavailable
from usersd.server.connections import Hosted
from usersd.start import first_run, hosted

NOT_BELIEVED = (
    "Forward authentication does not know the path: "
    "set server.proxyDropsUnderscores if the proxy removes headers with an underscore in their name"
)


class Application:
    def __init__(self, loaded: Loaded, log: Log) -> None:
        self._settings = loaded.settings
        self._log = log
        self._daemon = Embedded(lambda: _at_work(loaded, log), log)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        drop_original(environ, self._settings)
        try:
            app = self._daemon.opened().app
        except UsersError as error:
            request_id = new_request_id()
            self._log.event("database", request=request_id, message=str(error), hint=error.hint)
            response = unavailable(("X-Request-Id", request_id))
            return send_refusal(environ, start_response, response, self._settings)
        return app(environ, start_response)


@contextmanager
def _at_work(loaded: Loaded, log: Log) -> Iterator[Hosted]:
    settings = loaded.settings
    first_run(loaded, log)
    log_mail(settings, log)
    log_missing_metrics(settings, log)
    if settings.trusted_proxies and not settings.proxy_drops_underscores:
        log.event("not-believed", message=NOT_BELIEVED)
    with hosted(loaded, log) as daemon:
        log.event("serving", base_url=settings.base_url, process=os.getpid())
        try:
            yield daemon
        finally:
            daemon.on_stop()


_loaded, _log = load(), Log()
check(_loaded)
logging.getLogger().addHandler(Forward(_log))
application = Application(_loaded, _log)
