"""One connection of a client, with time limits for a slow one."""

import logging
import socket
import time
from typing import Any

from waitress.channel import ClientDisconnected, HTTPChannel

from usersd.server.lanes import Rejected
from usersd.server.messages import Parser, Task

log = logging.getLogger("usersd")

# Seconds that a client has.
TO_SEND = 5.0  # for a whole request; also until the first one of a connection begins
TO_READ = 30.0  # for an answer
TO_ASK_AGAIN = 120.0  # on an idle keep-alive connection: longer than proxies in front keep theirs
TO_READ_ERROR = 1.0  # while the rest of its request is discarded: closing at once would reset the answer away
TO_ASK_WHILE_STOPPING = 0.25  # for a connection without a request

LOOKAHEAD = 2  # requests read ahead on one connection


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

    @property
    def ends(self) -> bool:
        """Whether the answer that is sent now is the last one of this connection: the daemon stops, or clients that keep on
        asking would leave others no connection."""
        stopping, full = self.server.stopping, self.server.full
        return bool(stopping or full)

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
            wake, self.buffered = self.buffered, False
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

    @property
    def ends(self) -> bool:
        return bool(self.server.stopping)

    def time_limit(self) -> float | None:
        return 0.0 if self.server.stopping and not self.requests else None
