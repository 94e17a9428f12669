"""Accounts with password hashes of other systems: the first login through the socket, and what else asks for a password.

Some of the 500 of Django sign in in every run; all by `USERSCTL_LONG=1 pytest tests/interface/test_foreign_hashes.py`.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.commands import PASSWORD, Command
from support.daemons import serving
from support.faults import LONG
from support.hashes import PHRASE, of_packages
from support.servers import installed
from support.tables import hash_of, store_hash
from support.web import Client, Site

MADE = of_packages()
PEOPLE = 500
SIGNING_IN = PEOPLE if LONG else 8
DIFFERENT = 20  # hashes of Django, which take as long to make as to check


@pytest.mark.parametrize("name", MADE)
def test_the_first_login_replaces_the_hash_by_bcrypt(site: Site, name: str) -> None:
    ada = site.add("ada")
    store_hash(site.service, ada, MADE[name])
    refused = site.client().login(ada.email, "wrong")
    assert (refused.status, refused.message) == (401, "Invalid email or password")
    assert hash_of(site.service, ada) == MADE[name]
    client = site.client()
    assert client.login(ada.email, PHRASE).json["user"]["email"] == ada.email
    assert client.get("/api/users/me").status == 200
    assert hash_of(site.service, ada).startswith("$2b$04$")
    assert site.client().login(ada.email, PHRASE).status == 200
    assert site.client().login(ada.email, "wrong").status == 401


def test_parallel_first_logins_all_succeed_with_one_new_hash(site: Site) -> None:
    ada = site.add("ada")
    store_hash(site.service, ada, MADE["Werkzeug scrypt:1024:8:1"])
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: site.client().login(ada.email, PHRASE).status, range(8)))
    assert replies == [200] * 8
    assert hash_of(site.service, ada).startswith("$2b$")


def test_a_password_over_72_bytes_is_refused_until_its_owner_resets_it(site: Site) -> None:
    from werkzeug.security import generate_password_hash

    ada, long = site.add("ada"), "x" * 80
    store_hash(site.service, ada, generate_password_hash(long, "pbkdf2:sha256:100"))
    assert site.client().login(ada.email, long).status == 401
    assert hash_of(site.service, ada).startswith("pbkdf2:sha256:100$")


def test_a_stored_hash_that_costs_too_much_is_a_wrong_password_at_once(site: Site) -> None:
    ada = site.add("ada")
    for stored in (
        "pbkdf2_sha256$2000000000$salt$" + "A" * 43 + "=",
        "scrypt$1073741824$salt$8$16$" + "A" * 86 + "==",
        "$argon2id$v=19$m=4194304,t=1000,p=1$c2FsdHNhbHQ$" + "A" * 43,
    ):
        store_hash(site.service, ada, stored)
        assert site.client().login(ada.email, PHRASE).status == 401


@pytest.fixture
def without_argon2(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*filter(lambda name: name.partition(".")[0] == "argon2", sys.modules), "argon2"]:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without_argon2")
def test_without_the_library_a_login_is_refused_and_the_log_says_why(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    ada = site.add("ada")
    store_hash(site.service, ada, MADE["argon2-cffi ID 19"])
    assert site.client().login(ada.email, PHRASE).status == 401
    assert "pip install argon2-cffi" in caplog.text
    assert ada.email not in caplog.text


@pytest.mark.usefixtures("without_argon2")
def test_without_the_library_a_password_is_still_asked_for(site: Site) -> None:
    ada = site.add("ada")
    client = site.signed_in(ada)
    store_hash(site.service, ada, MADE["argon2-cffi ID 19"])
    assert client.delete("/api/users/me", body={"password": PHRASE}).status == 400
    assert client.delete("/api/users/me").message == "Password is required"
    assert site.service.recovery.has_password(ada.id)


def test_what_else_asks_for_the_password_takes_it(site: Site) -> None:
    ada = site.add("ada")
    client = site.signed_in(ada)
    new = "another horse battery"
    change = {"newPassword": new, "newPasswordConfirmation": new}
    for name in ("passlib phpass", "argon2-cffi I 19"):
        store_hash(site.service, ada, MADE[name])
        wrong = client.patch("/api/users/password", {"currentPassword": "wrong", **change})
        assert (wrong.status, wrong.message) == (400, "Current password is incorrect")
        assert client.patch("/api/users/password", {"currentPassword": PHRASE, **change}).status == 200
    store_hash(site.service, ada, MADE["WordPress"])
    assert client.post("/api/users/session/confirm", {"password": "wrong"}).status == 400
    assert client.post("/api/users/session/confirm", {"password": PHRASE}).status == 200
    assert client.delete("/api/users/me", body={"password": "wrong"}).status == 400
    assert client.delete("/api/users/me", body={"password": PHRASE}).status == 200


# --- from Django ---

DJANGO = """
import sys
from concurrent.futures import ThreadPoolExecutor
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}},
)
django.setup()
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.core.management import call_command
call_command("migrate", verbosity=0)
password, people, different = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with ThreadPoolExecutor() as pool:
    made = list(pool.map(make_password, [password] * different))
User.objects.bulk_create(
    User(username=f"user{n}", email=f"user{n}@example.com", password=made[n % different]) for n in range(people)
)
call_command("dumpdata", "auth.user", output="dump.json", verbosity=0)
"""


def make_people_of_django(usersctl: Command) -> None:
    """A dump of Django, with its default hashes of one password, some with the same salt."""
    installed("django-admin", "applications")
    words = [sys.executable, "-c", DJANGO, PASSWORD, str(PEOPLE), str(DIFFERENT)]
    subprocess.run(words, cwd=usersctl.folder, check=True, capture_output=True, timeout=600)


@pytest.mark.slow
def test_five_hundred_people_of_django_sign_in_with_their_passwords(usersctl: Command) -> None:
    make_people_of_django(usersctl)
    usersctl.configure("passwordHashing.rounds = 11\n")
    done = usersctl.ok("import", "--from", "django:dump.json", "--json").json
    assert (done["created"], done["without_password"]) == (PEOPLE, 0)
    assert done["foreign_hashes"] == {"PBKDF2": PEOPLE}
    with serving(usersctl) as daemon:

        def first_login(number: int) -> int:
            return Client(daemon.port).login(f"user{number}@example.com", PASSWORD).status

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(first_login, range(SIGNING_IN))) == [200] * SIGNING_IN
    with usersctl.service() as service, service.store.read() as tx:
        replaced = [stored for _, stored in tx.all_credentials() if stored.startswith("$2b$11$")]
    assert len(replaced) == SIGNING_IN
