"""[[webhooks]] in the configuration: what a table may have, and how a mistake is named."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.receivers import OTHER_SECRET, SECRET

from usersctl.config import load
from usersctl.config.sources import shown
from usersctl.config.webhooks import Webhook
from usersctl.errors import ConfigError
from usersctl.events import EVENTS

ENV = {"HOME": "/nonexistent", "USERS_DATABASE": "/srv/users.db"}
OPS = {"name": "ops", "url": "https://ops.example.com/hook", "secrets": [SECRET]}


def loaded(folder: Path, *tables: Any) -> Any:
    file = folder / "users.json"
    file.write_text(json.dumps({"webhooks": list(tables)}))
    return load(config=file, env=ENV)


def test_by_default_a_webhook_takes_all_events_and_has_a_public_address(tmp_path: Path) -> None:
    (ops,) = loaded(tmp_path, OPS).settings.webhooks
    assert ops == Webhook("ops", "https://ops.example.com/hook", (SECRET,), ("*",), False)
    assert all(ops.takes(event) for event in EVENTS)


def test_a_table_of_toml_has_every_key(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text(
        "baseUrl = 'https://accounts.example.com'\n[[webhooks]]\nname = 'a'\nurl = 'http://10.0.0.1:9/x?y=z'\n"
        f"events = ['user.created', 'lockdown.on']\nsecrets = ['{SECRET}', '{OTHER_SECRET}']\nallowPrivate = true\n"
    )
    (webhook,) = load(config=file, env=ENV).settings.webhooks
    assert webhook == Webhook(
        "a", "http://10.0.0.1:9/x?y=z", (SECRET, OTHER_SECRET), ("user.created", "lockdown.on"), True
    )
    assert webhook.takes("user.created")
    assert not webhook.takes("user.deleted")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"name": ""}, '[0].name = "": must be 1 to 63'),
        ({"name": "../x"}, "[0].name"),
        ({"name": 7}, "[0].name = 7"),
        ({"name": "x" * 64}, "[0].name"),
        ({"url": "ftp://ops.example.com"}, '[0].url = "ftp://ops.example.com": must be an http or https URL'),
        ({"url": "https://user:pass@ops.example.com"}, '[0].url = "***"'),
        ({"url": "https://ops.example.com/#x"}, "[0].url"),
        ({"url": "https://ops.example.com/a b"}, "[0].url"),
        ({"url": "https://ops.example.com/\r\nX: y"}, "[0].url"),
        ({"url": "https://ops.example.com:99999"}, "[0].url"),
        ({"url": "https://ops.example.com/" + "x" * 2000}, "[0].url"),
        ({"url": None}, "[0].url"),
        ({"events": []}, "[0].events = []: must be a list of user.created"),
        ({"events": ["user.create"]}, '[0].events = ["user.create"]'),
        ({"events": [["user.created"]]}, "[0].events"),
        ({"events": "*"}, "[0].events"),
        ({"secrets": []}, "[0].secrets"),
        ({"secrets": ["whsec_short"]}, "[0].secrets"),
        ({"secrets": [SECRET.removeprefix("whsec_")]}, "[0].secrets"),
        ({"secrets": ["whsec_" + "!" * 44]}, "[0].secrets"),
        ({"secrets": SECRET}, "[0].secrets"),
        ({"allowPrivate": "yes"}, '[0].allowPrivate = "yes": must be true or false'),
        (
            {"uri": "x"},
            '[0].uri = "***": unknown key, must be one of name, url, secrets, events, allowPrivate',
        ),
    ],
)
def test_a_mistake_is_named_by_its_key(tmp_path: Path, change: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, OPS | change)
    assert f"users.json: webhooks{part}" in str(error.value)
    assert SECRET[6:] not in str(error.value)


@pytest.mark.parametrize("key", OPS)
def test_a_key_that_is_needed_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"webhooks\[1\]\.{key} is missing$"):
        loaded(tmp_path, OPS, {name: value for name, value in (OPS | {"name": "b"}).items() if name != key})


def test_two_webhooks_need_two_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"webhooks\[1\]\.name = .*another"):
        loaded(tmp_path, OPS, OPS)


@pytest.mark.parametrize("value", ["ops", {"ops": {}}, ["ops"], 7])
def test_webhooks_are_tables(tmp_path: Path, value: Any) -> None:
    file = tmp_path / "users.json"
    file.write_text(json.dumps({"webhooks": value}))
    with pytest.raises(ConfigError, match=r"webhooks = .*\[\[webhooks\]\]"):
        load(config=file, env=ENV)


def test_what_is_shown_has_no_secret(tmp_path: Path) -> None:
    configuration = loaded(tmp_path, OPS)
    rows = {name: value for name, value, _ in shown(configuration)}
    assert rows["webhooks"][0]["secrets"] == ["***"]
    assert SECRET[6:] not in repr(configuration) + repr(configuration.settings.webhooks)
