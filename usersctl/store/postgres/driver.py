"""A connection to PostgreSQL with the face of SQLite's: values go in and come out as numbers, text and bytes.

On libpq itself, because psycopg's own cursors cost half as much again as the whole session check, and because libpq waits
for ever on a server that stands still.
"""

import re
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import OperationalError, ProgrammingError, pq
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq.abc import PGconn, PGresult
from psycopg.types.numeric import IntLoader

from usersctl import deadline
from usersctl.store.conninfo import Conninfo
from usersctl.store.postgres.dialect import translated

SILENCE = 5.0  # seconds without an answer, after which a server counts as gone; also for a new connection
SLOW = 4.5  # seconds, after which a server that is there gives a statement up
DEFAULTS = {"tcp_user_timeout": "3000", "target_session_attrs": "read-write"}
# In the words of libpq and the server: a connection that no waiting opens.
MISTAKES = re.compile(
    r"authentication|no password|does not exist|pg_hba|ermission denied|not permitted|certificate|invalid|unrecognized"
    r"|not found|not support"
)
# A server is there and lets nobody in, such as one with too many connections. It may say so in another language: libpq
# puts two blanks between the severity and the words of a server.
REFUSAL = re.compile(r" failed: [^:]+:  ")
# Text of so many values is different each time, so that the server would keep it in vain.
PREPARED_VALUES, PREPARED_STATEMENTS = 30, 300
FETCHED = 1_000  # rows of a stream at a time
# The server takes no text with a zero byte: a search for one finds nothing, as it does in a file.
NO_ZERO = "\ufffd".encode()
_INT, _TEXT, _BYTES, _UNKNOWN = 20, 25, 17, 0
_TYPES = {int: _INT, bool: _INT, bytes: _BYTES, type(None): _UNKNOWN}
_OK = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COPY_IN)


class ServerError(Exception):
    """The server refused a statement."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(message)
        self.state = state  # https://www.postgresql.org/docs/current/errcodes-appendix.html


class Away(Exception):
    """There is no server, or it does not answer. What became of a commit that was under way is not known."""

    state = ""  # has none, unlike a ServerError


class Silent(Away):
    """It took too long, so whatever asks next would wait as long."""


class Rows:
    """The result of a statement."""

    __slots__ = ("_left", "rowcount")

    def __init__(self, rows: list[tuple[Any, ...]], rowcount: int) -> None:
        self._left = iter(rows)
        self.rowcount = rowcount

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._left

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(self._left, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._left)


class Connection:
    def __init__(self, conninfo: Conninfo) -> None:
        self._pg = _connected(conninfo)
        self._pg.nonblocking = 1
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)
        self._prepared: dict[bytes, bytes] = {}  # the name of each statement
        self._reader = Transformer(_Adaption())
        self._streams = 0
        self._listens = self._is_closed = False
        self.silence = SILENCE
        self.since = time.monotonic()

    # --- statements ---

    def execute(self, statement: str, values: Any = ()) -> Rows:
        text, names = translated(statement)
        # `values` may have more names than the statement.
        given = [values[name] for name in names] if isinstance(values, dict) else values
        texts = [_encoded(value) for value in given]
        name = self._prepared.get(text)
        if name is None:
            types = [_TYPES.get(type(value), _TEXT) for value in given]
            if not self._is_worth_a_name(statement, given):
                return self._sent(self._pg.send_query_params, text, texts, types)
            name = b"s%d" % len(self._prepared)
            self._sent(self._pg.send_prepare, name, text, types)
            self._prepared[text] = name
        return self._sent(self._pg.send_query_prepared, name, texts)

    def _is_worth_a_name(self, statement: str, values: Sequence[Any]) -> bool:
        """By which the server knows it again. The best way of a search depends on its words, so it gets none."""
        return (
            len(values) <= PREPARED_VALUES
            and len(self._prepared) < PREPARED_STATEMENTS
            and not statement.startswith("DECLARE ")
            and " LIKE " not in statement
        )

    def run(self, text: str, *, within: float | None = None) -> Rows:
        """Several statements in one journey to the server, without values; the result of the last one."""
        return self._sent(self._pg.send_query, text.encode(), within=within)

    def stream(self, statement: str, values: Any = ()) -> Iterator[tuple[Any, ...]]:
        """The rows come a thousand at a time. Without a transaction all at once: a cursor lives in one."""
        if not self.in_transaction:
            yield from self.execute(statement, values)
            return
        self._streams += 1
        name = f"stream{self._streams}"
        self.execute(f"DECLARE {name} NO SCROLL CURSOR FOR {statement}", values)
        while rows := self.run(f"FETCH {FETCHED} FROM {name}").fetchall():
            yield from rows
        self.run(f"CLOSE {name}")

    def copy_in(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """The quickest way for many rows, into a table that this transaction made.

        The server writes them as if it had vacuumed already, which it would do a minute later.
        """
        self.run(f"COPY {table} ({', '.join(columns)}) FROM STDIN WITH (FREEZE)")
        try:
            for number, row in enumerate(rows):
                self._pg.put_copy_data(b"\t".join(map(_copied, row)) + b"\n")
                if number % FETCHED == 0:
                    self._flush(time.monotonic() + self.silence)
        except BaseException as error:
            lost = self._error(None)  # before its words go with the connection
            self.close()
            if isinstance(error, OperationalError):
                raise lost from error
            raise
        self._sent(self._pg.put_copy_end)

    @property
    def in_transaction(self) -> bool:
        return self._pg.transaction_status not in (pq.TransactionStatus.IDLE, pq.TransactionStatus.UNKNOWN)

    @property
    def is_lost(self) -> bool:
        """Also if the server has closed it since the last statement: unasked it sends nothing but that, and notices."""
        return self._pg.status != pq.ConnStatus.OK or (not self._listens and bool(self._poll.poll(0)))

    @contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        """For statements that take long: the making of an index, the copy of a table."""
        self.limit(seconds)
        try:
            yield
        finally:
            self.silence = SILENCE
            with suppress(ServerError, Away):  # in a transaction that failed, whose end undoes the limit
                self.limit()

    def limit(self, seconds: float = SLOW, *, scope: str = "SESSION") -> None:
        """Of a statement, kept by the server, which ends it in time and keeps the connection. So this waits longer."""
        self.run(f"SET {scope} statement_timeout = {round(seconds * 1000)}")
        self.silence = max(SILENCE, seconds + SILENCE - SLOW)

    # --- what the server sends by itself ---

    def listen(self, channel: str) -> None:
        if not self._listens:
            self.run(f"LISTEN {channel}")
            self._listens = True

    def notified(self, seconds: float, *, within: float) -> bool:
        """Whether a notice came, for which this waits so long. Raises an error if the server does not answer `within` so
        many seconds."""
        self._poll.poll(seconds * 1000)
        self.run("SELECT 1", within=within)
        return bool(list(iter(self._pg.notifies, None)))

    # --- the wire ---

    def _sent(self, send: Callable[..., object], *words: Any, within: float | None = None) -> Rows:
        try:
            send(*words)
            result = self._result(within or self.silence)
        except OperationalError as error:
            raise self._error(None) from error
        self._reader.set_pgresult(result)
        rows = Rows(self._reader.load_rows(0, result.ntuples, tuple), result.command_tuples or 0)
        self._reader.set_pgresult(None)  # frees it
        return rows

    def _result(self, seconds: float) -> PGresult:
        """That of the last statement, or of the one that failed: the server runs none behind it."""
        last: PGresult | None = None
        until = time.monotonic() + seconds
        self._flush(until)
        while last is None or last.status != pq.ExecStatus.COPY_IN:
            while self._pg.is_busy():
                self._wait(self._poll, until)
                self._pg.consume_input()
            result = self._pg.get_result()
            if result is None:
                break
            last = result
        if last is None or last.status not in _OK:
            raise self._error(last)
        return last

    def _flush(self, until: float) -> None:
        """Waits until the server has taken what was sent. It may have to be heard first."""
        while self._pg.flush():
            both = select.poll()
            both.register(self._pg.socket, select.POLLIN | select.POLLOUT)
            self._wait(both, until)
            self._pg.consume_input()

    def _wait(self, poll: "select.poll", until: float) -> None:
        left = until - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            self.close()
            raise Silent("the server does not answer")

    def _error(self, result: PGresult | None) -> ServerError | Away:
        if result is None or self._pg.status != pq.ConnStatus.OK:
            problem = "" if self._is_closed else _first_line(self._pg)
            return Away(problem or "the connection was lost")
        state, message = pq.DiagnosticField.SQLSTATE, pq.DiagnosticField.MESSAGE_PRIMARY
        words = [(result.error_field(field) or b"").decode("utf-8", "replace") for field in (state, message)]
        return ServerError(*words)

    @property
    def process(self) -> int:
        """Of the server, as it said when this connection began."""
        return self._pg.backend_pid

    def close(self) -> None:
        self._is_closed = True
        self._pg.finish()


def _connected(conninfo: Conninfo) -> PGconn:
    """To the first address that takes it. libpq by itself would let no other thread run while it waits."""
    options = DEFAULTS | _options(conninfo)
    problems = []
    for attempt, until in _attempts(options, time.monotonic() + SILENCE):
        pg = pq.PGconn.connect_start(attempt.encode())
        of_host = _waited(pg, until)
        if not of_host:
            return pg
        pg.finish()
        problems.append(of_host)
    raise Silent(max(problems, key=_weight, default="the name of its host is not known"))


def _weight(problem: str) -> int:
    """One host that answers tells more than others that are away."""
    return 2 * bool(MISTAKES.search(problem)) + bool(REFUSAL.search(problem))


def _waited(pg: PGconn, until: float) -> str:
    """The problem; empty if it is open in time."""
    state = pq.PollingStatus.WRITING
    while pg.status != pq.ConnStatus.BAD and state in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
        poll = select.poll()
        poll.register(pg.socket, select.POLLIN if state == pq.PollingStatus.READING else select.POLLOUT)
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            return f"{pg.host.decode()}, port {pg.port.decode()}, does not answer"
        state = pq.PollingStatus(pg.connect_poll())
    if pg.status == pq.ConnStatus.OK:
        return ""
    problem = _first_line(pg)
    if not problem:  # libpq has no words for it
        raise Away("this process has too many files open")
    return problem


def _options(conninfo: str) -> dict[str, str]:
    try:
        return {key: str(value) for key, value in conninfo_to_dict(conninfo).items()}
    except ProgrammingError as error:
        raise Away(str(error).strip()) from None


def _attempts(options: dict[str, str], until: float) -> Iterator[tuple[str, float]]:
    """The options with each address of each host, and until when to try them."""
    hosts, numbers, ports = (options.get(key, "").split(",") for key in ("host", "hostaddr", "port"))
    count = max(len(hosts), len(numbers))
    for n in range(count):
        host, number, port = (some[min(n, len(some) - 1)] for some in (hosts, numbers, ports))
        of_host = _share(until, count - n)
        # A host may be the folder of a socket.
        addresses = [number] if number or host[:1] in "/@" else _looked_up(host, of_host)
        for m, address in enumerate(addresses):
            one = options | {"host": host, "hostaddr": address, "port": port}
            # An empty one would hide what the environment or a service file says.
            given = {key: value for key, value in one.items() if value}
            yield make_conninfo(**given), _share(of_host, len(addresses) - m)


def _share(until: float, count: int) -> float:
    """Until when the first of so many may take."""
    now = time.monotonic()
    return now + (until - now) / count


_known: dict[str, list[str]] = {}  # the addresses of each host


def _looked_up(host: str, until: float) -> list[str]:
    """The last known ones if name servers are away, with half of the time left to use them."""
    until = _share(until, 2 if host in _known else 1)
    with suppress(OSError, UnicodeError):  # also if it takes too long, or no host can have that name
        deadline.within(until - time.monotonic(), lambda: _look_up(host))
    return _known.get(host, [])


def _look_up(host: str) -> None:
    """An answer that comes too late is known to the next connection."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    _known[host] = [str(address[0]) for *_, address in found]


def _first_line(pg: PGconn) -> str:
    """Of the last problem; the others give advice."""
    return pg.error_message.decode("utf-8", "replace").strip().partition("\n")[0]


def _encoded(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode().replace(b"\0", NO_ZERO)
    return b"\\x%s" % value.hex().encode() if isinstance(value, bytes) else b"%d" % value


def _copied(value: Any) -> bytes:
    """As a row of COPY has it. A zero byte stays, so that the server refuses it."""
    text = value.encode() if isinstance(value, str) else _encoded(value)
    if text is None:
        return b"\\N"
    return text.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r").replace(b"\t", b"\\t")


class _Adaption:
    """How values of the server are read: as psycopg does, but for a sum, which is a number. A boolean is one for Python."""

    connection = None
    adapters = AdaptersMap(psycopg.adapters)


_Adaption.adapters.register_loader("numeric", IntLoader)
