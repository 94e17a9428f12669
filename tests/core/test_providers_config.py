"""The configuration of several identity providers: what each may say, what a preset gives, and which mistakes stop a start."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from usersctl.config import load
from usersctl.config.providers import PRESETS, ProviderSettings
from usersctl.config.sources import MASK, Loaded, shown
from usersctl.errors import ConfigError

KEYS = 'clientId = "users"\nclientSecret = "a secret of google"\n'
GOOGLE = f'[auth.providers.google]\npreset = "google"\n{KEYS}'
OWN = f'[auth.providers.own]\nissuer = "https://id.example.com"\n{KEYS}'
CALLBACK = "/api/users/auth/oauth/callback"

LoadText = Callable[..., Loaded]


@pytest.fixture
def load_text(tmp_path: Path) -> LoadText:
    def load_(text: str, **env: str) -> Loaded:
        file = tmp_path / "users.toml"
        file.write_text(text)
        return load(config=file, env={"HOME": str(tmp_path)} | env)

    return load_


def providers(loaded: Loaded) -> dict[str, ProviderSettings]:
    return {provider.name: provider for provider in loaded.settings.providers}


def refusal(load_text: LoadText, text: str, **env: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load_text(text, **env)
    return str(refused.value)


def test_each_provider_has_its_own_values_and_the_defaults_of_auth_oauth(load_text: LoadText) -> None:
    loaded = load_text(GOOGLE + OWN + 'label = "Example"\nscopes = ["openid"]\ntrustsEmail = true\n')
    google, own = providers(loaded).values()
    assert (google.name, google.issuer, google.display, google.logo) == (
        "google", "https://accounts.google.com", "Google", "google",
    )  # fmt: skip
    assert (google.scopes, google.trusts_email, google.allow_auto_registration) == (
        ("openid", "profile", "email"), False, False,
    )  # fmt: skip
    assert (own.display, own.logo, own.scopes, own.trusts_email) == ("Example", None, ("openid",), True)
    assert [each.callback_url for each in (google, own)] == [f"{CALLBACK}/google", f"{CALLBACK}/own"]


def test_each_provider_is_trusted_with_second_factors_by_itself(load_text: LoadText) -> None:
    assert load_text(GOOGLE + OWN).settings.trusted_providers == ()
    trusted = load_text(GOOGLE + OWN + "trustsFactors = true\n").settings
    assert trusted.trusted_providers == ("own",)
    trusted = load_text(
        f'[auth.oauth]\nissuer = "https://id.example.com"\ntrustsFactors = true\n{KEYS}'
    ).settings
    assert trusted.trusted_providers == ("oauth",)
    assert "trustsFactors" in refusal(load_text, GOOGLE + 'trustsFactors = "yes"\n')


def test_auth_oauth_is_the_first_provider_and_is_called_oauth(load_text: LoadText) -> None:
    loaded = load_text(GOOGLE + f'[auth.oauth]\nissuer = "https://id.example.com"\n{KEYS}')
    assert list(providers(loaded)) == ["oauth", "google"]
    assert loaded.settings.provider("oauth") == loaded.settings.oauth
    assert loaded.settings.provider("other") is None


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_needs_nothing_but_a_client(load_text: LoadText, preset: str) -> None:
    loaded = load_text(f'[auth.providers.one]\npreset = "{preset}"\n{KEYS}')
    (provider,) = providers(loaded).values()
    assert (provider.logo, provider.display.lower()) == (preset, preset)
    assert provider.issuer_of_links is not None


def test_what_is_written_wins_over_a_preset(load_text: LoadText) -> None:
    text = '[auth.providers.own]\npreset = "gitlab"\nissuer = "https://git.example.com"\n' + KEYS
    loaded = load_text(text)
    own = providers(loaded)["own"]
    assert (own.issuer, own.display, own.logo) == ("https://git.example.com", "GitLab", "gitlab")
    origins = {name: source for name, _, source in shown(loaded)}
    assert origins["auth.providers.own.label"] == "preset gitlab"
    assert origins["auth.providers.own.issuer"].endswith("users.toml")


def test_the_callback_of_a_provider_follows_that_of_auth_oauth_or_is_its_own(load_text: LoadText) -> None:
    text = '[auth.oauth]\ncallbackUrl = "/sso/back"\n' + GOOGLE + OWN + 'callbackUrl = "/sso/own"\n'
    assert [each.callback_url for each in providers(load_text(text)).values()] == [
        "/sso/back/google",
        "/sso/own",
    ]


def test_secrets_come_from_the_environment_or_a_file(load_text: LoadText, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from a file\n")
    text = '[auth.providers.google]\npreset = "google"\n[auth.providers.my-own]\nissuer = "https://id.example.com"\n'
    loaded = load_text(
        text,
        USERS_PROVIDERS_GOOGLE_CLIENT_ID="users",
        USERS_PROVIDERS_GOOGLE_CLIENT_SECRET_FILE=str(secret),
        USERS_PROVIDERS_MY_OWN_CLIENT_ID="mine",
        USERS_PROVIDERS_MY_OWN_CLIENT_SECRET="plain",
    )
    found = {name: (each.client_id, each.client_secret) for name, each in providers(loaded).items()}
    assert found == {"google": ("users", "from a file"), "my-own": ("mine", "plain")}


def test_a_provider_without_client_or_secret_signs_nobody_in(load_text: LoadText) -> None:
    text = '[auth.providers.a]\npreset = "google"\nclientId = "x"\n[auth.providers.b]\npreset = "gitlab"\nclientSecret = ""\n'
    loaded = load_text(text)
    assert (providers(loaded), len(loaded.settings.described_providers)) == ({}, 3)
    assert not loaded.settings.providers


def test_no_secret_is_shown(load_text: LoadText) -> None:
    loaded = load_text(GOOGLE)
    rows = {name: value for name, value, _ in shown(loaded)}
    assert rows["auth.providers.google.clientSecret"] == MASK
    told = repr(loaded) + repr(loaded.settings.providers) + json.dumps(rows, default=str)
    assert "a secret of google" not in told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OWN.replace("own", "Own"), "auth.providers.Own: must be 1 to 31 small letters, digits and hyphens"),
        (OWN.replace("own", "1own"), "auth.providers.1own: must be"),
        (OWN.replace("own", "a" * 32), "must be 1 to 31"),
        (OWN.replace("own", '"a.b"'), "auth.providers.a.b"),
        (OWN.replace("own", "oauth"), "auth.providers.oauth: this name stands for auth.oauth: choose another"),
        (OWN + 'isuer = "x"\n', "unknown key auth.providers.own.isuer (did you mean auth.providers.own.issuer?)"),
        (OWN + 'preset = "facebook"\n', "must be one of google, microsoft, github, gitlab"),
        (OWN + 'successRedirect = "https://evil.example/"\n', "auth.providers.own.successRedirect"),
        (OWN + "clientSecrets = 7\n", "did you mean auth.providers.own.clientSecret?"),
        (OWN.replace("https:", "http:"), "must be an https URL"),
        (GOOGLE + 'issuer = "https://id.example.com/.well-known/openid-configuration"\n', 'google.issuer = "https://id.example.com/.well-known/openid-configuration": must be the issuer itself: all before /.well-known/'),
        (OWN + 'tokenUrl = "http://127.0.0.1/token"\n', "auth.providers.own.tokenUrl"),
        (f"[auth.providers.own]\n{KEYS}", "needs auth.providers.own.issuer, or a preset"),
        ("[auth]\nproviders = 7\n", "auth.providers = ***: must be a table of keys"),
        ("[auth.providers]\nown = 7\n", "auth.providers.own = ***: must be a table of keys"),
        (GOOGLE + OWN + f'callbackUrl = "{CALLBACK}/google"\n', "is the callback of google: choose another path"),
    ],
)  # fmt: skip
def test_a_mistake_stops_the_start_and_says_what_is_allowed(
    load_text: LoadText, text: str, message: str
) -> None:
    assert message in refusal(load_text, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[auth.providers.own]\nlabel = "Own"\n', 'own.label = "Own": needs auth.providers.own.issuer'),
        # The callback of Google's sign-in follows from its name and is written nowhere.
        (
            OWN + f'callbackUrl = "{CALLBACK}/google"\n' + GOOGLE,
            f'own.callbackUrl = "{CALLBACK}/google": is the callback of google',
        ),
    ],
)
def test_a_mistake_in_a_key_that_is_left_out_is_told_at_one_that_is_written(
    load_text: LoadText, tmp_path: Path, text: str, message: str
) -> None:
    assert refusal(load_text, text).startswith(f"{tmp_path / 'users.toml'}: auth.providers.{message}")


def test_an_environment_variable_and_its_file_together_are_refused(load_text: LoadText) -> None:
    message = refusal(
        load_text,
        GOOGLE,
        USERS_PROVIDERS_GOOGLE_CLIENT_SECRET="x",
        USERS_PROVIDERS_GOOGLE_CLIENT_SECRET_FILE="/dev/null",
    )
    assert "are both set: keep one of them" in message
