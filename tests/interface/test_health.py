"""The health checks /health and /ready, over a socket."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.databases import held, opened
from support.web import Site

from usersctl import readiness
from usersctl.readiness import Readiness
from usersctl.service import Service
from usersctl.store import database_file
from usersctl.store.conninfo import Conninfo
from usersctl.store.opening import open_store


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this the answer may be a second old."""
    monkeypatch.setattr(readiness, "FRESH", 0.0)


def failing(site: Site) -> str:
    reply = site.client().get("/ready")
    assert reply.status == 503
    assert reply.header("Retry-After") == "5"
    assert str(site.service.settings.folder) not in reply.body.decode()
    assert site.service.store.name not in reply.body.decode()
    return reply.message


def test_a_healthy_daemon_is_alive_and_ready(site: Site) -> None:
    for path, status in (("/health", "alive"), ("/ready", "ready")):
        reply = site.client().get(path)
        assert (reply.status, reply.json) == (200, {"status": status})
        assert reply.header("Cache-Control") == "no-store"
        head = site.client().send("HEAD", path)
        assert (head.status, head.body) == (200, b"")


def test_health_does_not_use_the_database(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_now(*_words: object) -> None:
        raise AssertionError("the database was asked")

    monkeypatch.setattr(type(site.service.store), "_connection", not_now)
    assert site.client().get("/health").status == 200
    assert site.client(cookies={"auth_token": "A" * 43}).get("/health").status == 200


@pytest.mark.sqlite  # a missing file
def test_a_database_that_is_gone_is_not_ready(site: Site) -> None:
    path = site.service.store.path
    path.rename(path.with_name("elsewhere.db"))
    assert failing(site) == "Not ready: database"
    assert site.client().get("/health").status == 200
    path.with_name("elsewhere.db").rename(path)
    assert site.client().get("/ready").status == 200


@pytest.mark.sqlite  # the disk of a file
def test_a_full_disk_is_not_ready(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.service.store, "least_space", 2**62)
    assert failing(site) == "Not ready: database"


def test_a_database_that_cannot_be_written_is_not_ready(
    site: Site, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.readiness, "store", open_store(service.store.database, write=False))
    assert failing(site) == "Not ready: database"
    service.readiness.store.close()


@pytest.mark.sqlite  # the version in the head of a file
@pytest.mark.parametrize(("version", "application"), [(99, database_file.APPLICATION_ID), (0, 0)])
def test_a_schema_of_another_version_is_not_ready(site: Site, version: int, application: int) -> None:
    with opened(site.service.store.database) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute(f"PRAGMA application_id = {application}")
    assert failing(site) == "Not ready: schema"


def test_a_database_of_another_version_on_a_server_is_not_ready(
    make_site: Callable[..., Site], postgres_database: Callable[[], Conninfo]
) -> None:
    site = make_site(database=postgres_database())
    assert site.client().get("/ready").status == 200
    with opened(site.service.store.database) as connection:
        connection.execute("UPDATE installation SET version = 99")
    assert failing(site) == "Not ready: schema"


def test_a_database_that_another_process_writes_to_is_ready(site: Site) -> None:
    with held(site.service.store.database):
        began = time.monotonic()
        assert site.client().get("/ready").status == 200
        assert time.monotonic() - began < database_file.BUSY_SECONDS


def test_each_part_that_does_not_work_is_named(site: Site) -> None:
    site.service.readiness.parts = lambda: {"worker": False, "scheduler": True, "third": False}
    assert failing(site) == "Not ready: worker, third"


def test_a_daemon_that_stops_is_not_ready_but_alive(site: Site) -> None:
    site.service.stop()
    assert failing(site) == "Not ready: the daemon stops"
    assert site.client().get("/health").status == 200


def test_frequent_readiness_checks_are_cheap(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "FRESH", 1000.0)
    looks: list[int] = []
    site.service.readiness.parts = lambda: {"worker": bool(looks.append(1)) or True}
    for _ in range(5):
        assert site.client().get("/ready").status == 200
    assert len(looks) == 1


def test_successful_health_checks_are_not_logged(site: Site) -> None:
    for path in ("/health", "/ready"):
        site.client().get(path)
        site.client().send("HEAD", path)
    assert site.log == []
    site.service.stop()
    site.client().get("/ready")
    site.client().post("/health")
    assert [(line["path"], line["status"]) for line in site.log] == [("/ready", 503), ("/health", 405)]


def test_paths_below_the_health_paths_are_not_open(make_site: Callable[..., Site]) -> None:
    """The whitelist is for the application behind the proxy."""
    site = make_site(whitelist=())
    assert site.client().get("/health/").status == 302
    assert site.client().get("/ready/database").status == 302


@pytest.fixture
def looks() -> list[str]:
    return []


@pytest.fixture
def looking(service: Service, looks: list[str]) -> Readiness:
    def parts() -> dict[str, bool]:
        looks.append("look")
        return {"worker": False, "leader": True}

    return Readiness(service.store, parts)


def test_one_look_serves_for_a_second(
    looking: Readiness, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # see at_once
    assert readiness.FRESH == 1.0
    assert [looking.failing() for _ in range(3)] == [["worker"]] * 3
    assert looks == ["look"]
    looked_at, names = looking._result
    looking._result = looked_at - 1.0, names
    assert looking.failing() == ["worker"]
    assert looks == ["look"] * 2


def test_while_a_thread_looks_the_others_get_the_previous_result(
    looking: Readiness, looks: list[str]
) -> None:
    with ThreadPoolExecutor(1) as pool, looking._lock:
        assert pool.submit(looking.failing).result(10) == ["start"]
    assert looks == []
    assert looking.failing() == ["worker"]
