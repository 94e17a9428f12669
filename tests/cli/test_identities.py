"""The command with several identity providers: shown, unlinked, explained, checked, moved."""

import json
import random
import string
from typing import Any

import pytest
from support.commands import Command, create_user
from support.factors import store_passkey
from support.identities import link, link_of

CONFIGURED = """
[auth.oauth]
clientId = "x"
clientSecret = "y"
issuer = "https://id.example"

[auth.providers.google]
preset = "google"
clientId = "x"
clientSecret = "y"
allowAutoRegistration = true
"""
GOOGLE = "https://accounts.google.com"


@pytest.fixture
def configured(usersctl: Command) -> Command:
    usersctl.configure(CONFIGURED)
    usersctl.add("ada")
    with usersctl.service() as service:
        link(service, 1, "7", "https://id.example")
        link(service, 1, "g-1", GOOGLE, provider="google")
    return usersctl


def identities(usersctl: Command) -> list[str]:
    with usersctl.service() as service:
        return [one.name for one in service.identities.of(1)]


def audited(usersctl: Command) -> list[Any]:
    return [row["details"].get("unlinked") for row in usersctl("audit", "--json").json]


def resets(usersctl: Command) -> int:
    emails = usersctl.ok("mail", "list", "--json").json
    return sum(email["kind"] == "reset" for email in emails)


def test_show_lists_each_identity(configured: Command) -> None:
    shown = configured.ok("show", "ada@example.com").stdout
    assert "identity_oauth\t7 at https://id.example" in shown
    assert f"identity_google\tg-1 at {GOOGLE}" in shown
    assert configured.ok("show", "ada@example.com", "--json").json["oauth_id"] == "7"


def test_update_unlinks_one_provider_and_leaves_the_others(configured: Command) -> None:
    told = configured.ok("update", "ada@example.com", "--unlink", "google").stderr
    assert "Provider google: a sign-in there with ada@example.com links it again" in told
    assert identities(configured) == ["oauth"]
    assert "google" in audited(configured)
    done = configured.ok("update", "ada@example.com", "--unlink", "google")
    assert "Unchanged" in done.stdout + done.stderr
    assert configured.ok("update", "ada@example.com", "--unlink", "oauth", "--json").json["oauth_id"] is None
    kinds = [email["kind"] for email in configured.ok("mail", "list", "--json").json]
    assert kinds.count("account-unlinked") == 2


def test_an_account_whose_other_provider_is_not_configured_gets_a_reset_email(usersctl: Command) -> None:
    usersctl.configure(CONFIGURED)
    with usersctl.service() as service:
        create_user(service, "ada@example.com", "Ada", None)
        link(service, 1, "7", "https://id.example")
        link(service, 1, "8", "https://gone.example", provider="gone")
    before = resets(usersctl)
    usersctl.ok("update", "ada@example.com", "--unlink", "oauth")
    assert resets(usersctl) == before + 1


@pytest.mark.parametrize(("rp_id", "asked"), [("localhost", 0), ("former.example", 1)])
def test_an_account_with_a_passkey_of_this_host_gets_no_reset_email(
    usersctl: Command, rp_id: str, asked: int
) -> None:
    usersctl.configure(f'baseUrl = "http://localhost"\n{CONFIGURED}')
    with usersctl.service() as service:
        create_user(service, "ada@example.com", "Ada", None)
        link(service, 1, "7", "https://id.example")
        with service.store.write() as tx:
            store_passkey(tx, 1, "phone", rp_id=rp_id)
    before = resets(usersctl)
    usersctl.ok("update", "ada@example.com", "--unlink", "oauth")
    assert resets(usersctl) == before + asked


def test_update_refuses_a_provider_that_it_does_not_know(configured: Command) -> None:
    done = configured("update", "ada@example.com", "--unlink", "gogle")
    assert (done.code, "No provider 'gogle'" in done.stderr) == (2, True)
    assert "oauth, google" in done.stderr
    assert identities(configured) == ["oauth", "google"]


def test_why_has_a_gate_for_each_provider(configured: Command) -> None:
    gates = {gate["name"]: gate for gate in configured("why", "ada@example.com", "--json").json["gates"]}
    assert gates["provider"]["message"] == "linked as 7 at https://id.example"
    assert gates["provider-google"]["message"] == f"linked as g-1 at {GOOGLE}"
    assert {gates[name]["state"] for name in ("provider", "provider-google")} == {"open"}
    gates = {gate["name"]: gate for gate in configured("why", "eve@example.com", "--json").json["gates"]}
    assert gates["provider"]["message"].endswith("user_not_registered")
    assert gates["provider-google"]["message"].endswith("create the account")


def test_doctor_checks_each_provider(configured: Command) -> None:
    with configured.service() as service:
        link(service, 1, "g-1", "https://former.example", provider="google")
        link(service, 1, "9", "https://gone.example", provider="gone")
    findings = [
        (finding["severity"], finding["message"])
        for finding in configured("doctor", "--json").json["findings"]
        if finding["code"].startswith("provider")
    ]
    callback = "http://127.0.0.1:8080/api/users/auth/oauth/callback"
    assert ("ok", f"https://id.example; its callback is {callback}") in findings
    assert ("ok", f"google: {GOOGLE}; its callback is {callback}/google") in findings
    assert ("ok", "all of https://id.example") in findings
    assert any(text.startswith("google: accounts are linked elsewhere") for _, text in findings)
    assert ("warning", "1 account linked at gone, which is not configured") in findings


def test_doctor_asks_each_provider_online(configured: Command) -> None:
    """The others are asked, too, when one does not answer: no name here exists in DNS."""
    configured.configure(
        CONFIGURED.replace("id.example", "a.invalid").replace(
            "preset =", 'issuer = "https://b.invalid"\npreset ='
        )
    )
    findings = configured("doctor", "--online", "--json").json["findings"]
    asked = [finding for finding in findings if finding["code"] == "provider-discovery"]
    assert [finding["severity"] for finding in asked] == ["problem", "problem"]
    assert [finding["mend"] for finding in asked] == [
        "check auth.oauth.issuer",
        "check auth.providers.google.issuer",
    ]


def test_identities_are_exported_and_imported(configured: Command) -> None:
    for form in ("csv", "json", "jsonl"):
        exported = configured.ok("export", "-", "--format", form).stdout
        configured.ok("update", "ada@example.com", "--unlink", "google")
        configured.ok("import", "-", "--format", form, "--on-conflict", "update", stdin=exported)
        with configured.service() as service:
            assert link_of(service, 1, "google") == ("g-1", GOOGLE)
        again = configured.ok("import", "-", "--format", form, "--on-conflict", "update", stdin=exported)
        assert "1 unchanged" in again.stdout


def imported(usersctl: Command, **row: Any) -> Any:
    row = {"email": "eve@example.com"} | row
    return usersctl("import", "-", "--format", "jsonl", stdin=json.dumps(row) + "\n")


def test_an_identity_without_an_issuer_gets_that_of_the_configuration(configured: Command) -> None:
    assert imported(configured, identities=[{"provider": "google", "subject": "g-2"}]).code == 0
    with configured.service() as service:
        assert link_of(service, 2, "google") == ("g-2", GOOGLE)


def test_people_stay_linked_when_the_issuer_of_their_provider_changes(configured: Command) -> None:
    """As the manual says: the former issuer is replaced in two columns of an export."""
    identity = {"provider": "oauth", "subject": "8", "email": "eve@example.com"}
    assert imported(configured, identities=[identity]).code == 0
    exported = configured.ok("export", "-", "--format", "csv").stdout
    renamed = exported.replace("https://id.example", "https://next.example")
    configured.ok("import", "-", "--on-conflict", "update", stdin=renamed)
    with configured.service() as service:
        assert [link_of(service, user_id) for user_id in (1, 2)] == [
            ("7", "https://next.example"),
            ("8", "https://next.example"),
        ]


@pytest.mark.parametrize(
    ("identities", "message"),
    [
        ("no json", "identities is not JSON"),
        ({"provider": "google"}, "must be a list of objects"),
        ([{"provider": "google"}], "needs a provider and a subject"),
        ([{"provider": "Google", "subject": "1"}], "'Google' is no name of a provider"),
        ([{"provider": "google", "subject": "1", "sub": "1"}], "and nothing else"),
        ([{"provider": "google", "subject": "1"}] * 2, "a provider twice"),
        ([{"provider": "google", "subject": 7}], "subject must be a string"),
        ([{"provider": "google", "subject": "7" * 256}], "subject of an identity has more than 255 characters"),
        ([{"provider": "google", "subject": "1", "issuer": "x"}], "is no web address"),
        ([{"provider": "google", "subject": "1", "issuer": "https://["}], "is no web address"),
        ([{"provider": "google", "subject": "1", "issuer": "https://x.example/".ljust(1001, "x")}], "has more than 1000 bytes"),
        ([{"provider": "oauth", "subject": "8"}], "say different things"),
        ([{"provider": "google", "subject": "g-1"}], "g-1 of google is taken by ada@example.com"),
    ],
)  # fmt: skip
def test_an_identity_that_cannot_be_imported_is_named(
    configured: Command, identities: Any, message: str
) -> None:
    done = imported(configured, oauth_id="9", identities=identities)
    assert done.code in (2, 4)
    assert message in done.stderr


def test_the_longest_issuer_and_id_can_be_imported(configured: Command) -> None:
    chance = random.Random(1)  # so that no database makes them shorter
    subject = "".join(chr(chance.randrange(0x20000, 0x2A6D6)) for _ in range(255))
    issuer = "https://x.example/" + "".join(chance.choices(string.ascii_letters, k=982))
    identity = {"provider": "p" * 31, "subject": subject, "issuer": issuer}
    assert imported(configured, identities=[identity]).code == 0
    shown = [json.loads(line) for line in configured.ok("export", "--format", "jsonl").stdout.splitlines()]
    assert [
        one["issuer"] for row in shown for one in row["identities"] or [] if one["subject"] == subject
    ] == [issuer]


def test_config_shows_and_explains_the_keys_of_a_provider(configured: Command) -> None:
    shown = configured.ok("config", "show", "--origin").stdout
    assert f'auth.providers.google.issuer = "{GOOGLE}"  # preset google' in shown
    assert '# auth.providers.google.clientSecret = "***"' in shown
    explained = configured.ok("config", "explain", "auth.providers.google.clientSecret", "--json").json
    assert explained["environment"] == [
        "USERS_PROVIDERS_GOOGLE_CLIENT_SECRET",
        "USERS_PROVIDERS_GOOGLE_CLIENT_SECRET_FILE",
    ]
    for table in ("auth.providers", "auth.providers.NAME", "auth.providers.NAME.preset"):
        assert "auth.providers.NAME.preset" in configured.ok("config", "explain", table).stdout
    for table in ("auth.providers.google", "auth.providers.my-own"):
        assert f"key\t{table}.preset\n" in configured.ok("config", "explain", table).stdout
    for wrong in ("auth.providers.oauth", "auth.providers.Own", "auth.providers.google.isuer"):
        refused = configured("config", "explain", wrong)
        assert (refused.code, f"unknown key {wrong}" in refused.stderr) == (2, True)
