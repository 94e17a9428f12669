"""One request to a receiver: which addresses it may reach, how long it may take, how much of the answer is read."""

import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.certificates import make_certificates
from support.receivers import raw_receiver, request_of

from usersctl.webhooks import reach, sending
from usersctl.webhooks.errors import NotDelivered
from usersctl.webhooks.sending import Answer

HEADERS = {"webhook-id": "msg_1"}
Resolve = Callable[[str, int], list[str]]


def post(port: int, *, host: str = "127.0.0.1", path: str = "/hook", whole: float = 10) -> Answer:
    url = f"http://{host}:{port}{path}"
    return sending.post(url, b"{}", HEADERS, allow_private=True, whole=whole)


def answering(*parts: bytes, pause: float = 0) -> Callable[[socket.socket], None]:
    def talk(connection: socket.socket) -> None:
        request_of(connection)
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)

    return talk


# --- addresses ---

PRIVATE = [
    "0.0.0.0",  # noqa: S104 - compared
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.8.8.8",
    "169.254.169.254",
    "172.16.0.1",
    "168.63.129.16",  # of every machine in Azure
    "192.0.0.1",
    "192.0.0.9",
    "192.0.0.192",  # metadata of a cloud
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",  # compatible
    "::ffff:127.0.0.1",  # mapped
    "::ffff:10.0.0.1",
    "::ffff:0:10.0.0.1",  # translated
    "64:ff9b::10.0.0.1",  # NAT64
    "64:ff9b::169.254.169.254",
    "64:ff9b::192.0.0.192",
    "64:ff9b:1::8.8.8.8",  # NAT64 of a private network
    "2002:7f00:1::",  # 6to4 of 127.0.0.1
    "2002:a00:1::1",  # of 10.0.0.1
    "2001:0:7f00:1::",  # Teredo
    "2001:1::1",  # of port control
    "2001:20::1",  # ORCHID
    "2001:db8::1",
    "2600:1f18::5efe:10.0.0.1",  # ISATAP
    "2600:1f18::200:5efe:192.168.0.1",
    "3fff::1",
    "5f00::1",
    "100::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%lo",
    "fec0::1",
    "ff02::1",
    "not an address",
]
PUBLIC = [
    "8.8.8.8",
    "93.184.216.34",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2002:808:808::1",
    "2606:4700::1111",
    "2600:1f18::1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_of_this_machine_or_a_private_network_is_refused(address: str) -> None:
    assert not reach.is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_may_be_reached(address: str) -> None:
    assert reach.is_public(address)


def test_a_public_address_of_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_is_global", lambda _address: True)
    assert not reach.is_public("127.0.0.1")


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Names resolve to these addresses, one after the other. Returns the names that were asked for."""
    asked: list[str] = []

    def resolve(host: str, _port: int) -> list[str]:
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    monkeypatch.setattr(reach, "resolve", resolve)
    return asked


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["::ffff:127.0.0.1"]])
def test_a_name_with_a_private_address_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    resolving(monkeypatch, addresses)
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("connected"))
    with pytest.raises(NotDelivered, match="refused without allowPrivate"):
        sending.post("http://rebind.example.com/", b"{}", HEADERS, allow_private=False)


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_every_way_to_write_this_machine_is_refused(host: str) -> None:
    connected = threading.Event()
    with raw_receiver(lambda _connection: connected.set()) as port, pytest.raises(NotDelivered):
        sending.post(f"http://{host}:{port}/", b"{}", HEADERS, allow_private=False)
    assert not connected.is_set()


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = resolving(monkeypatch, ["8.8.8.8"], ["127.0.0.1"])
    connected_to = []

    def connect(address: tuple[str, int], _seconds: float) -> socket.socket:
        connected_to.append(address)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(NotDelivered, match="Connection refused"):
        sending.post("https://rebind.example.com/", b"{}", HEADERS, allow_private=False)
    assert asked == ["rebind.example.com"]
    assert connected_to == [("8.8.8.8", 443)]


def test_an_address_that_refuses_leaves_the_others_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, ["127.0.0.2", "127.0.0.1"])
    with raw_receiver(answering(b"HTTP/1.1 200 OK\r\n\r\n")) as port:
        assert post(port, host="ops.example.com") == Answer(200)


def test_a_silent_address_leaves_time_for_the_next_one_and_the_last_one_has_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolving(monkeypatch, ["127.0.0.2", "127.0.0.1"], ["127.0.0.1"])
    given: list[int] = []

    def connect(_address: tuple[str, int], seconds: float) -> socket.socket:
        given.append(round(seconds))
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    for _ in range(2):
        with pytest.raises(NotDelivered, match="no answer within 15 s"):
            post(1, host="ops.example.com", whole=15)
    assert given == [5, 15, 15]


def test_the_host_is_named_with_the_port_of_the_url_or_without_the_usual_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect, hosts, ports = socket.create_connection, list[str](), list[int]()

    def talk(connection: socket.socket) -> None:
        hosts.append(request_of(connection)[0]["host"])
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    with raw_receiver(talk) as port:

        def connected(address: tuple[str, int], seconds: float) -> socket.socket:
            ports.append(address[1])
            return connect(("127.0.0.1", port), seconds)

        monkeypatch.setattr(socket, "create_connection", connected)
        for host in ("127.0.0.1", "[::1]", "127.0.0.1:8080"):
            sending.post(f"http://{host}/", b"{}", HEADERS, allow_private=True)
    assert hosts == ["127.0.0.1", "[::1]", "127.0.0.1:8080"]
    assert ports == [80, 80, 8080]


def test_a_url_without_a_path_is_that_of_the_root() -> None:
    heads = []

    def talk(connection: socket.socket) -> None:
        heads.append(request_of(connection)[0][""])
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    for path in ("", "?a=b", "/"):
        with raw_receiver(talk) as port:
            assert post(port, path=path) == Answer(200)
    assert heads == ["POST / HTTP/1.1", "POST /?a=b HTTP/1.1", "POST / HTTP/1.1"]


def test_the_name_is_sent_and_checked_although_the_address_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = []

    def wrap(_self: ssl.SSLContext, connection: socket.socket, *, server_hostname: str) -> socket.socket:
        names.append(server_hostname)
        return connection

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", wrap)
    resolving(monkeypatch, ["127.0.0.1"])
    heads = []

    def talk(connection: socket.socket) -> None:
        heads.append(request_of(connection)[0])
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    with raw_receiver(talk) as port:
        answer = sending.post(f"https://ops.example.com:{port}/a?b=c", b"{}", HEADERS, allow_private=True)
    assert answer == Answer(200)
    assert names == ["ops.example.com"]
    assert (heads[0][""], heads[0]["host"]) == ("POST /a?b=c HTTP/1.1", f"ops.example.com:{port}")


@pytest.mark.parametrize(("host", "expected"), [("localhost", "204"), ("127.0.0.1", "mismatch")])
def test_a_receiver_needs_a_certificate_for_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, expected: str
) -> None:
    certificates = make_certificates(tmp_path)
    context = certificates.server("localhost")

    def talk(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            answering(b"HTTP/1.1 204 Taken\r\n\r\n")(secure)

    def asked(port: int) -> str:
        try:
            url = f"https://{host}:{port}/"
            return str(sending.post(url, b"{}", HEADERS, allow_private=True).status)
        except NotDelivered as problem:
            return str(problem)

    with raw_receiver(talk) as port:
        assert "certificate" in asked(port)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
        assert expected in asked(port)


# --- the answer ---


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Answer(200)),
        (b"HTTP/1.0 204\r\n\r\n", Answer(204)),
        (b"HTTP/1.1 429 Slow\r\nretry-after:  30 \r\n\r\n", Answer(429, "30")),
        (b"HTTP/1.1 503 Busy\nRetry-After: 30\n\n", Answer(503, "30")),
        (b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n", Answer(302)),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 410 Gone\r\n\r\n",
            Answer(410),
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nRetry-After: 9\r\n\r\n", Answer(200)),
        (b"HTTP/1.1 200 OK\r\nTruncated", Answer(200)),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000, Answer(200)),
    ],
)
def test_the_status_of_the_answer_counts(said: bytes, expected: Answer) -> None:
    with raw_receiver(answering(said)) as port:
        assert post(port) == expected


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\0" * 100,
        b"\xff\xfe garbage \r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 99\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"x" * 1_000_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
    ],
)
def test_garbage_is_no_answer(said: bytes) -> None:
    with raw_receiver(answering(said)) as port, pytest.raises(NotDelivered, match="the answer is no HTTP"):
        post(port)


def test_an_answer_counts_when_its_head_ends_whatever_comes_in_pieces_or_stays_open() -> None:
    parts = (b"HTTP/1.1 100 Continue\r\n", b"\r\nHTTP/1.1 20", b"4\r\nA: b\r\n", b"\r\n")
    over = threading.Event()

    def talk(connection: socket.socket) -> None:
        answering(*parts, pause=0.05)(connection)
        over.wait(20)

    with raw_receiver(talk) as port:
        began = time.monotonic()
        assert post(port) == Answer(204)
        assert time.monotonic() - began < 5
        over.set()


def test_no_more_than_4_kb_are_read() -> None:
    def talk(connection: socket.socket) -> None:
        request_of(connection)
        while True:  # until the connection is closed
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 40)

    assert sending.MOST_READ == 4096
    with raw_receiver(talk) as port, pytest.raises(NotDelivered, match="no HTTP"):  # and not for want of time
        post(port)


@pytest.mark.parametrize(
    "talk",
    [
        lambda _connection: time.sleep(2),  # takes the connection and says nothing
        answering(*[b"H"] * 20, pause=0.1),
        answering(b"HTTP/1.1 ", b"2", b"0", *[b"0"] * 20, pause=0.1),
    ],
)
def test_a_receiver_that_is_slow_or_drips_is_given_up_in_time(
    talk: Callable[[socket.socket], object],
) -> None:
    began = time.monotonic()
    with raw_receiver(talk) as port, pytest.raises(NotDelivered, match=r"no answer within 0\.5 s"):
        post(port, whole=0.5)
    assert time.monotonic() - began < 3


def test_an_answer_whose_headers_drip_counts_by_its_status() -> None:
    said = (b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n"] * 20)
    with raw_receiver(answering(*said, pause=0.1)) as port:
        assert post(port, whole=0.5) == Answer(200)


def test_a_name_that_takes_long_to_resolve_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "resolve", lambda *_: time.sleep(2))
    began = time.monotonic()
    with pytest.raises(NotDelivered, match="no answer within"):
        post(1, host="slow.example.com", whole=0.3)
    assert time.monotonic() - began < 1.5


def test_a_name_that_does_not_exist_cannot_be_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **_more: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(NotDelivered, match="cannot be resolved"):
        post(1, host="nowhere.invalid")


def test_one_request_may_take_15_seconds() -> None:
    assert sending.WHOLE == 15
