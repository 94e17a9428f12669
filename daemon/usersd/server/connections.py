"""waitress, taught our manners: connections with an eye on slow clients, lanes of threads, an end that answers first.

What is read and written on a connection is in `wire`.
"""

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
from usersd.server.lanes import Lane, Lanes, TurnedAway
from usersd.server.messages import Parser, Task

log = logging.getLogger("usersd")

Headers = list[tuple[str, str]]
WSGIApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

MAX_HEADERS = 16 * 1024

# Seconds that a client gets.
TO_SEND = 5.0  # a whole request; also the first one of a connection
TO_READ = 30.0  # an answer
TO_ASK_AGAIN = 120.0  # on a connection kept alive: longer than the proxies in front keep theirs
TO_HEAR_A_REFUSAL = 1.0  # while what it still sends is thrown away: a reset would take the answer with it

# Seconds that stopping takes at most, for all, and for those who have not asked yet.
TO_STOP = 4.5
TO_BEGIN_BEFORE = 1.0  # before that is over; who still waits for a thread then is told to come back
TO_LEAVE = 1.0  # for a thread that is at work for nobody any more
TO_ASK_WHILE_STOPPING = 0.25

LOOK_EVERY = 0.5  # seconds between two looks of the watchdog
LOOKAHEAD = 2  # requests on one connection beyond which no more is read


def plain_refusal(status: int, message: str, _environ: dict[str, Any] | None) -> Response:
    """An error that is answered here, before or instead of the application."""
    return error_response(status, message)


def nothing() -> None:
    pass


def nobody_looks(_waiting: int) -> None:
    pass


@dataclass(frozen=True)
class Hosted:
    """What one process serves."""

    app: WSGIApp
    lane: Callable[[str, str], Lane] = lambda _method, _path: Lane.QUICK  # by method and path
    refuse: Callable[[int, str, dict[str, Any] | None], Response] = plain_refusal
    on_stop: Callable[[], None] = nothing  # once, before the last requests are answered
    on_look: Callable[[int], None] = nobody_looks  # now and then: how many wait for a thread that hashes


class Channel(HTTPChannel):  # type: ignore[misc]
    """One connection. The main thread reads and watches; a thread of a lane answers one request after the other.

    Whoever answers writes to the socket at once and wakes the main thread only if it has something to do. That
    needs LOOKAHEAD: the main thread goes on reading meanwhile, so it need not be told that the request is done.
    """

    parser_class = Parser
    task_class = error_task_class = Task
    logger = log

    requests: list[Any]
    close_when_flushed: bool
    current_outbuf_count: int

    answered = False  # an answer was given, and nothing has come since
    held = False  # the next request waits until the client has read the last answer
    buffered = False  # the client did not take all of an answer at once
    ended = False  # the client sends no more, but may still read
    unread = False  # a refused request was not read to its end
    begun = False  # something of the answer to the first request is out
    lingers = False

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
        if self.socket is None:  # closed by what was read a moment ago
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
        """The time to stop is over. Whoever has nothing of an answer yet is told to come back."""
        with self.outbuf_lock:  # a thread that is at work for it has the word now, or not any more
            if self.connected and self.requests and not self.begun:
                self.requests[0].error = TurnedAway()
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

    def patience(self) -> float | None:
        """Seconds from `since` until the watchdog closes the connection; None while we are the slow ones."""
        stopping, crowded = self.server.stopping, self.server.crowded
        if self.lingers:
            return TO_HEAR_A_REFUSAL
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
        """As waitress has it, but for the wake-up at the end, which costs as much as a small answer."""
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
        """Has the next request's body been waiting for us to finish this one?"""
        request = self.request
        return bool(
            self.connected
            and request is not None
            and request.expect_continue
            and request.headers_finished
            and not self.sent_continue
        )


class OwnChannel(Channel):
    """A connection from within this process, which may be silent as long as it likes, but not keep us from stopping."""

    def patience(self) -> float | None:
        return 0.0 if self.server.stopping and not self.requests else None


# --- the server ---


class Server(TcpWSGIServer):  # type: ignore[misc]
    """One process's share of a listening socket. `run` in one thread, `stop` from any."""

    channel_class = Channel
    logger = log

    def __init__(
        self,
        listener: socket.socket,
        hosted: Hosted,
        *,
        threads: int,
        slow_threads: int,
        waiting_room: int,
        connections: int,
    ) -> None:
        self.hosted = hosted
        self.stopping = False
        self.crowded = False
        self.out_of_files = False
        self.asked_to_stop = False
        lanes = Lanes(hosted.lane, threads=threads, slow_threads=slow_threads, waiting_room=waiting_room)
        super().__init__(
            hosted.app,
            map={},
            _sock=listener,
            dispatcher=lanes,
            bind_socket=False,
            sockinfo=(listener.family, listener.type, listener.proto, listener.getsockname()),
            adj=Adjustments(
                sockets=[listener],
                ident=None,
                # Forwarded headers are the application's to judge, and to see.
                clear_untrusted_proxy_headers=False,
                connection_limit=connections,
                channel_request_lookahead=LOOKAHEAD,
                max_request_header_size=MAX_HEADERS,
                max_request_body_size=MAX_BODY + 1,  # waitress refuses what reaches it
                log_socket_errors=False,
            ),
        )

    def caller(self) -> socket.socket:
        """The other end of a connection of our own, for who wants to know whether we answer. Before `run`."""
        ours, theirs = socket.socketpair()
        OwnChannel(self, ours, (UNIX, None), self.adj, map=self._map)
        return theirs

    def stop(self) -> None:
        self.asked_to_stop = True
        with contextlib.suppress(OSError):  # the loop may have seen it by itself, and be done
            self.pull_trigger()

    def run(self, *, alive: Callable[[], bool] = lambda: True) -> bool:
        """Until `stop`, or until `alive`, asked now and then, says no. Then answers what has come.

        Returns whether all threads ended.
        """
        next_look = 0.0
        while not self.asked_to_stop:
            self._turn(LOOK_EVERY)
            now = time.monotonic()
            if now >= next_look:
                next_look = now + LOOK_EVERY
                self._watch(now)
                self.asked_to_stop |= not alive()
        deadline = time.monotonic() + TO_STOP
        self._refuse_newcomers()
        while self.active_channels and time.monotonic() < deadline:
            self._turn(0.05)
            self._watch(time.monotonic())
            if time.monotonic() > deadline - TO_BEGIN_BEFORE:
                self.task_dispatcher.turn_away_who_waits()
        if self.active_channels:
            log.warning("Connections that were cut off: %d", len(self.active_channels))
        for channel in list(self.active_channels.values()):
            channel.cut_off()
        # A thread that still runs may pull the trigger, and its descriptor must not have become another file's.
        ended: bool = self.task_dispatcher.stop(TO_LEAVE)
        if ended:
            self.trigger.close()
        return ended

    def _turn(self, seconds: float) -> None:
        wasyncore.poll2(seconds, self._map)
        self.task_dispatcher.answer_here()

    def _refuse_newcomers(self) -> None:
        try:
            self.hosted.on_stop()
        except Exception:
            log.exception("Stopping goes on")
        # Whoever is in the kernel's queue believes to be connected.
        known = -1
        while known < len(self._map):
            known = len(self._map)
            self.handle_accept()
        wasyncore.dispatcher.close(self)
        self.stopping = True
        now = time.monotonic()
        for channel in self.active_channels.values():
            channel.since = now

    def _watch(self, now: float) -> None:
        """Closes connections whose client takes too long."""
        self.task_dispatcher.turn_away()
        self.hosted.on_look(self.task_dispatcher.waiting_to_hash)
        self.crowded = self.out_of_files or len(self._map) > self.adj.connection_limit // 2
        self.out_of_files = False
        for channel in list(self.active_channels.values()):
            patience = channel.patience()
            if patience is not None and now - channel.since > patience:
                channel.handle_close()

    def readable(self) -> bool:
        return bool(self.accepting and not self.out_of_files and len(self._map) < self.adj.connection_limit)

    def accept(self) -> Any:
        try:
            return super().accept()
        except OSError as error:
            # The connection stays in the kernel's queue, and would be reported again at once, and again.
            self.out_of_files = error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
            if self.out_of_files and not self.crowded:
                log.warning("No connection can be accepted for now: %s", error.strerror)
            raise

    def getsockname(self) -> tuple[str, str]:
        named: tuple[str, str] = (UNIX, "0") if self.family == socket.AF_UNIX else super().getsockname()
        return named

    def set_socket_options(self, conn: socket.socket) -> None:
        if self.family != socket.AF_UNIX:  # they are all of TCP
            super().set_socket_options(conn)

    def add_task(self, channel: Channel) -> None:
        # One who does not read his answers gets no more of them.
        if channel.total_outbufs_len:
            channel.held = True
        elif channel.requests:
            self.task_dispatcher.add_task(channel)

    def fix_addr(self, addr: Any) -> Any:
        if self.family == socket.AF_UNIX:
            return UNIX, None
        # An IPv4 client of a socket that speaks both.
        return (addr[0].removeprefix("::ffff:"), *addr[1:]) if "." in addr[0] else addr

    def handle_error(self) -> None:
        # waitress would close the listening socket.
        log.error("A connection could not be accepted", exc_info=sys.exc_info())
