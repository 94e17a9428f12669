"""The server of one process: waitress with separate thread pools, and a shutdown that answers pending requests first."""

import contextlib
import errno
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.server import TcpWSGIServer

from usersctl.config.values import UNIX
from usersctl.named import NamedTuple
from usersd.request import MAX_BODY
from usersd.response import Response, error_response
from usersd.server.channel import LOOKAHEAD, Channel, InternalChannel
from usersd.server.lanes import Lane, Lanes
from usersd.server.watch import Watched

log = logging.getLogger("usersd")

WSGIApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

MAX_HEADERS = 16 * 1024

# Seconds that a shutdown takes.
TO_STOP = 4.5  # at most, until connections are cut off
TO_BEGIN_BEFORE = 1.0  # before that deadline, requests that still wait for a thread are answered 503
TO_LEAVE = 1.0  # after it, for threads to end

TICK_EVERY = 0.5  # seconds between two ticks of the watchdog


class Hosted(NamedTuple):
    """The application that one process serves, and its callbacks."""

    app: WSGIApp
    # Takes the place of `app`, if it is given: the response to the environ without WSGI's calls back and forth.
    answer: Callable[[dict[str, Any]], Response] | None = None
    lane: Callable[[str, str], Lane] = lambda _method, _path: Lane.QUICK  # by method and path
    # The answer to a request that does not reach the application; the environ is None if it could not be parsed.
    on_error: Callable[[int, str, dict[str, Any] | None], Response] = lambda status, message, _environ: (
        error_response(status, message)
    )
    # Around the requests that the main thread answers in one round.
    together: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    on_stop: Callable[[], None] = lambda: None  # once, before the last requests are answered
    on_tick: Callable[[int], None] = lambda _waiting: None  # every half second: requests that wait to hash
    max_body: int = MAX_BODY  # bytes


class Server(TcpWSGIServer):  # type: ignore[misc]
    """The server of one process on a listening socket. Call `run` in one thread, `stop` from any."""

    channel_class = Channel
    logger = log

    def __init__(self, listener: socket.socket, hosted: Hosted, *, connections: int, **sizes: int) -> None:
        self.hosted = hosted
        self.stopping = False
        self.full = False  # more than half of the connections are taken
        self.crowded = False  # that, or no more files can be opened
        self.out_of_files = False
        self.asked_to_stop = False
        super().__init__(
            hosted.app,
            map=Watched(),
            _sock=listener,
            dispatcher=Lanes(hosted.lane, together=hosted.together, **sizes),
            bind_socket=False,
            sockinfo=(listener.family, listener.type, listener.proto, listener.getsockname()),
            adj=Adjustments(
                sockets=[listener],
                ident=None,
                # The application decides which forwarded headers it believes, so it must see them.
                clear_untrusted_proxy_headers=False,
                connection_limit=connections,
                channel_request_lookahead=LOOKAHEAD,
                max_request_header_size=MAX_HEADERS,
                max_request_body_size=hosted.max_body + 1,  # waitress refuses from this size on
                log_socket_errors=False,
            ),
        )

        # The listening socket, and the pipe by which threads wake the main thread.
        self._no_clients = set(self._map)
        # What all requests have in common of their WSGI environment.
        self.environ = {
            "SERVER_NAME": self.adj.server_name,
            "SERVER_PORT": str(self.effective_port),
            "SCRIPT_NAME": "",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": self.adj.url_scheme,
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            "wsgi.input_terminated": True,
        }
        self._watch_all()

    def internal_connection(self) -> socket.socket:
        """The client's end of a new connection to this server, for the self-check. Call before `run`."""
        ours, theirs = socket.socketpair()
        InternalChannel(self, ours, (UNIX, None), self.adj, map=self._map)
        self._watch_all()
        return theirs

    def stop(self) -> None:
        self.asked_to_stop = True
        with contextlib.suppress(OSError):  # the loop may have ended already
            self.pull_trigger()

    def run(self, *, alive: Callable[[], bool] = lambda: True) -> bool:
        """Serves until `stop` or until `alive`, called at each tick, returns False; then answers pending requests.

        Returns whether all threads ended.
        """
        next_tick = 0.0
        while not self.asked_to_stop:
            self._turn(TICK_EVERY)
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + TICK_EVERY
                self._tick(now)
                self.asked_to_stop |= not alive()
        deadline = time.monotonic() + TO_STOP
        self._stop_accepting()
        while self.active_channels and time.monotonic() < deadline:
            self._turn(0.05)
            self._tick(time.monotonic())
            if time.monotonic() > deadline - TO_BEGIN_BEFORE:
                self.task_dispatcher.reject_waiting()
        if self.active_channels:
            log.warning("Connections that were cut off: %d", len(self.active_channels))
        for channel in list(self.active_channels.values()):
            channel.cut_off()
        # A thread that still runs may write to the trigger, whose descriptor must not be another file's by then.
        ended: bool = self.task_dispatcher.stop(TO_LEAVE)
        if ended:
            self.trigger.close()
        return ended

    def _turn(self, seconds: float) -> None:
        """One round: what clients sent is read, and what the main thread can answer is answered."""
        ready = self._map.wait(seconds)
        for number, channel, events in ready:
            if self._map.get(number) is channel:  # no other event of this round has closed it
                wasyncore.readwrite(channel, events)
        self.task_dispatcher.answer_here()
        numbers = [number for number, _, _ in ready]
        if self._no_clients.isdisjoint(numbers):
            self._map.watch(numbers)
        else:
            self._watch_all()  # a connection is new, or a thread has changed something

    def _watch_all(self) -> None:
        self._map.watch(list(self._map))

    def _stop_accepting(self) -> None:
        try:
            self.hosted.on_stop()
        except Exception:
            log.exception("A callback failed while stopping")
        # Clients in the kernel's queue are connected as far as they know, so they are served, too.
        known = -1
        while known < len(self._map):
            known = len(self._map)
            self.handle_accept()
        wasyncore.dispatcher.close(self)
        self.stopping = True
        now = time.monotonic()
        for channel in self.active_channels.values():
            channel.since = now

    def _tick(self, now: float) -> None:
        """The watchdog: answers requests that were rejected or lack a thread, and closes connections whose client takes too
        long."""
        self.task_dispatcher.answer_rejected()
        self.task_dispatcher.start_again()
        self.hosted.on_tick(self.task_dispatcher.waiting_to_hash)
        self.full = len(self._map) > self.adj.connection_limit // 2
        self.crowded = self.out_of_files or self.full
        self.out_of_files = False
        for channel in list(self.active_channels.values()):
            limit = channel.time_limit()
            if limit is not None and now - channel.since > limit:
                channel.handle_close()
        self._watch_all()  # it may accept again

    def readable(self) -> bool:
        return bool(self.accepting and not self.out_of_files and len(self._map) < self.adj.connection_limit)

    def accept(self) -> Any:
        try:
            return super().accept()
        except OSError as error:
            # The connection stays in the kernel's queue, and the loop would report it again without a pause.
            self.out_of_files = error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
            if self.out_of_files and not self.crowded:
                log.warning("No connection can be accepted for now: %s", error.strerror)
            raise

    def getsockname(self) -> tuple[str, str]:
        if self.family == socket.AF_UNIX:
            return UNIX, "0"
        address: tuple[str, str] = super().getsockname()
        return address

    def set_socket_options(self, conn: socket.socket) -> None:
        if self.family != socket.AF_UNIX:  # the options are TCP's
            super().set_socket_options(conn)

    def add_task(self, channel: Channel) -> None:
        # A client that does not read its answers gets no more of them.
        if channel.total_outbufs_len:
            channel.held = True
        elif channel.requests:
            self.task_dispatcher.add_task(channel)

    def fix_addr(self, addr: Any) -> Any:
        if self.family == socket.AF_UNIX:
            return UNIX, None
        if "." in addr[0]:  # an IPv4 client of a dual-stack socket
            return addr[0].removeprefix("::ffff:"), *addr[1:]
        return addr

    def handle_error(self) -> None:
        # waitress' own method closes the listening socket.
        log.error("A connection could not be accepted", exc_info=sys.exc_info())
