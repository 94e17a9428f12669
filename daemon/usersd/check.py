"""Checks what only the daemon needs of the configuration: templates, texts and images of the operator, the path of the
callback, and the password of the mail account."""

from usersctl.config import Settings
from usersctl.config.providers import table_of
from usersctl.config.sources import Loaded
from usersctl.errors import ConfigError
from usersd.pages import assets


def check(loaded: Loaded) -> None:
    """A mistake stops the start, and not a later request."""
    try:
        _check(loaded.settings)
    except ConfigError as error:
        key = str(error).partition(" = ")[0]
        origin = loaded.origins.get(key)  # None if the message names a file
        if origin is None:
            raise
        raise ConfigError(f"{origin.source}: {error}", hint=error.hint) from None


def _check(settings: Settings) -> None:
    # Late, because `usersctl config check` starts without the libraries of mail and of the daemon where they have nothing
    # to check.
    if settings.mailer_templates is not None:
        from usersctl.mail.writer import Writer

        Writer(settings).check()
    assets.check(settings)
    if settings.mailer_user is not None and settings.mailer_password is None:
        hint = "set USERS_MAILER_PASS; if only the daemon has it, as in /etc/users/usersd.env, other commands do without"
        key = f'mailer.auth.user = "{settings.mailer_user}"'
        raise ConfigError(f"{key}: mailer.auth.user and mailer.auth.pass go together", hint=hint)
    usual = Settings._field_defaults["oauth_callback_url"]
    for provider in settings.described_providers:
        path = provider.callback_url
        if path not in (usual, f"{usual}/{provider.name}") and path in _taken():
            setting = f"{table_of(provider.name)}.callbackUrl = {path!r}"
            raise ConfigError(f"{setting}: this path is taken by another page; choose a free one")


def _taken() -> set[str]:
    from usersd.handlers.oauth import callback
    from usersd.routes import TABLE

    return {route.path for route in TABLE if route.handler is not callback}
