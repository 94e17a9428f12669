"""waitress with time limits for slow clients, separate thread pools, and a shutdown that answers pending requests first."""

import contextlib
import errno
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import ClientDisconnected, HTTPChannel
from waitress.server import TcpWSGIServer

from usersctl.config.values import UNIX
from usersd.request import MAX_BODY
from usersd.response import Response, error_response
from usersd.server.lanes import Lane, Lanes, Rejected
from usersd.server.messages import Parser, Task
from usersd.server.watch import Watched

log = logging.getLogger("usersd")

WSGIApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

MAX_HEADERS = 16 * 1024

# Seconds that a client has.
TO_SEND = 5.0  # for a whole request; also until the first one of a connection begins
TO_READ = 30.0  # for an answer
TO_ASK_AGAIN = 120.0  # on an idle keep-alive connection: longer than proxies in front keep theirs
TO_READ_ERROR = 1.0  # while the rest of its request is discarded: closing at once would reset the answer away

# Seconds that a shutdown takes.
TO_STOP = 4.5  # at most, until connections are cut off
TO_BEGIN_BEFORE = 1.0  # before that deadline, requests that still wait for a thread are answered 503
TO_LEAVE = 1.0  # after it, for threads to end
TO_ASK_WHILE_STOPPING = 0.25  # for a connection without a request

TICK_EVERY = 0.5  # seconds between two ticks of the watchdog
LOOKAHEAD = 2  # requests read ahead on one connection


@dataclass(frozen=True)
class Hosted:
    """The application that one process serves, and its callbacks."""

    app: WSGIApp
    # Takes the place of `app`, if it is given: the response to the environ without WSGI's calls back and forth.
    answer: Callable[[dict[str, Any]], Response] | None = None
    lane: Callable[[str, str], Lane] = lambda _method, _path: Lane.QUICK  # by method and path
    # The answer to a request that does not reach the application; the environ is None if it could not be parsed.
    on_error: Callable[[int, str, dict[str, Any] | None], Response] = lambda status, message, _environ: (
        error_response(status, message)
    )
    on_stop: Callable[[], None] = lambda: None  # once, before the last requests are answered
    on_tick: Callable[[int], None] = lambda _waiting: None  # every half second: requests that wait to hash
    max_body: int = MAX_BODY  # bytes


class Channel(HTTPChannel):  # type: ignore[misc]
    """One connection. The main thread reads and watches it; a thread of a lane answers one request after the other.

    The answering thread writes to the socket itself and wakes the main thread only if that has something to do. This
    works because of LOOKAHEAD: the main thread reads on meanwhile, so it need not hear that the request is done.
    """

    parser_class = Parser
    task_class = error_task_class = Task
    logger = log

    requests: list[Any]
    close_when_flushed: bool
    current_outbuf_count: int

    answered = False  # an answer was sent, and the client has sent nothing since
    held = False  # the next request waits until the client has read the last answer
    buffered = False  # the client did not take all of an answer at once
    ended = False  # the client sends no more, but may still read
    unread = False  # a refused request was not read to its end
    begun = False  # a part of the answer to the first request is sent
    lingers = False  # the answer is sent; the rest of the request is read and discarded

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.since = time.monotonic()

    # in the main thread

    def readable(self) -> bool:
        return self.lingers or not (
            self.ended
            or self.will_close
            or self.close_when_flushed
            or len(self.requests) > LOOKAHEAD
            or self.total_outbufs_len
        )

    def writable(self) -> bool:
        return bool(self.total_outbufs_len or self.will_close or self.close_when_flushed or self.held)

    def handle_read(self) -> None:
        try:
            data = self.socket.recv(self.adj.recv_bytes)
        except BlockingIOError:
            return
        except OSError:
            self.handle_close()
            return
        if data and not self.lingers:
            if self.answered:
                self.answered = False
                self.since = time.monotonic()
            self.received(data)
        elif not data:
            with self.requests_lock:
                self.ended = bool(self.requests) and not self.lingers
            if not self.ended:
                self.handle_close()

    def handle_write(self) -> None:
        if self.socket is None:  # closed by handle_read in the same turn of the loop
            return
        if self.total_outbufs_len:
            self._flush_exception(self._flush_some_if_lockable)
        if not self.total_outbufs_len:
            if self.held:
                self.held = False
                with self.requests_lock:
                    self.server.add_task(self)
            if self.close_when_flushed:
                self.close_when_flushed = False
                self.will_close = not self.unread or not self._linger()
        if self.will_close:
            self.handle_close()

    def cut_off(self) -> None:
        """Shutdown deadline reached: sends 503 to a client that has received no byte yet, then closes."""
        # A thread that answers this connection writes before this block, or not at all.
        with self.outbuf_lock:
            if self.connected and self.requests and not self.begun:
                self.requests[0].error = Rejected()
                self.task_class(self, self.requests[0]).service()
            self.handle_close()

    def _linger(self) -> bool:
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        self.since = time.monotonic()
        self.lingers = True
        return True

    def time_limit(self) -> float | None:
        """Seconds from `since` until the watchdog closes the connection; None while the client waits for us."""
        stopping, crowded = self.server.stopping, self.server.crowded
        if self.lingers:
            return TO_READ_ERROR
        if self.total_outbufs_len:
            return TO_READ
        if self.requests:
            return None
        if stopping:
            return TO_ASK_WHILE_STOPPING
        return TO_ASK_AGAIN if self.answered and self.request is None and not crowded else TO_SEND

    # in a thread of a lane

    def write_soon(self, data: Any) -> int:
        self.begun = True
        if isinstance(data, bytes) and not self.total_outbufs_len:
            with self.outbuf_lock:
                if self.connected and not self.total_outbufs_len:
                    try:
                        sent = self.send(data, do_close=False)
                    except OSError:
                        self.will_close = True
                        raise ClientDisconnected from None
                    if sent < len(data):
                        self.buffered = True
                        super().write_soon(data[sent:])
                    return len(data)
        self.buffered = True
        super().write_soon(data)
        return len(data)

    def service(self, *, nonblocking: bool = False) -> None:
        """waitress' method without its wake-up at the end, which costs as much as a small answer."""
        request = self.requests[0]
        self.begun = False
        task = self.task_class(self, request)
        task.nonblocking = nonblocking
        if self.connected:
            task.service()
        else:
            task.close_on_finish = True
        if self.current_outbuf_count:
            # The next answer gets a buffer of its own.
            self.current_outbuf_count = self.adj.outbuf_high_watermark
        request.close()
        with self.requests_lock:
            wake = self.buffered or len(self.requests) > LOOKAHEAD
            self.buffered = False
            self.since = time.monotonic()
            self.answered = self.request is None
            if task.close_on_finish:
                self.unread = request.error is not None
                for later in self.requests[1:]:
                    later.close()
                self.requests = []
                self.close_when_flushed = True
            else:
                self.requests.pop(0)
                if self.connected and self.requests:
                    self.server.add_task(self)
                    wake = True  # it may be for the main thread
                elif self.ended:
                    self.close_when_flushed = True
                elif self._owes_continue():
                    wake = True
                    self.send_continue()
        if self.connected and (wake or self.held or self.will_close or self.close_when_flushed):
            self.server.pull_trigger()

    def _owes_continue(self) -> bool:
        """True if the client waits for "100 Continue" before it sends the next request's body."""
        request = self.request
        expects = request is not None and request.expect_continue and request.headers_finished
        return bool(self.connected and expects and not self.sent_continue)


class InternalChannel(Channel):
    """A connection from within this process: without time limit, but closed at once when the daemon stops."""

    def time_limit(self) -> float | None:
        return 0.0 if self.server.stopping and not self.requests else None


# --- the server ---


class Server(TcpWSGIServer):  # type: ignore[misc]
    """The server of one process on a listening socket. Call `run` in one thread, `stop` from any."""

    channel_class = Channel
    logger = log

    def __init__(self, listener: socket.socket, hosted: Hosted, *, connections: int, **sizes: int) -> None:
        self.hosted = hosted
        self.stopping = False
        self.crowded = False
        self.out_of_files = False
        self.asked_to_stop = False
        super().__init__(
            hosted.app,
            map=Watched(),
            _sock=listener,
            dispatcher=Lanes(hosted.lane, **sizes),
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
        """The watchdog: answers rejected requests and closes connections whose client takes too long."""
        self.task_dispatcher.answer_rejected()
        self.hosted.on_tick(self.task_dispatcher.waiting_to_hash)
        self.crowded = self.out_of_files or len(self._map) > self.adj.connection_limit // 2
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
