"""`serve --dev`: a trial on this machine, with a database, sample people and an identity provider of its own."""

from usersctl.config import Settings
from usersctl.config.providers import host_of
from usersctl.config.sources import COMMAND_LINE, Loaded, Origin
from usersctl.config.values import is_loopback
from usersctl.errors import Invalid
from usersctl.mail.folder import TRIAL
from usersctl.models import SYSTEM, UserFilter
from usersctl.named import NamedTuple
from usersctl.secrets import new_token
from usersctl.service import Service
from usersd.dev_provider import SampleProvider
from usersd.dev_proxy import application_at
from usersd.page_access import REGISTRATION
from usersd.routes import FOR_DEVELOPMENT, TABLE
from usersd.routing import Route


class Trial(NamedTuple):
    """What the options of `serve --dev` say."""

    app: str | None = None  # the URL of an application to stand in front of
    samples: bool = True


# Others than those of the sample provider, who come by signing in.
PEOPLE = (
    ("emmy@example.com", "Emmy Noether"),
    ("lukasiewicz@example.com", "Jan Łukasiewicz"),
    ("hypatia@example.com", "Ὑπατία"),
    ("sofja@example.com", "Софья Ковалевская"),
    ("alchwarizmi@example.com", "محمد بن موسى الخوارزمي"),
    ("yukawa@example.com", "湯川秀樹"),
    ("oersted@example.com", "Hans Christian Ørsted"),
)
DEACTIVATED = "oersted@example.com"


def for_development(loaded: Loaded, trial: Trial) -> tuple[Loaded, tuple[Route, ...], tuple[str, int] | None]:
    """Configuration and routes of --dev, open to everybody on this machine and closed to others; and the address of the
    application behind it."""
    settings = loaded.settings
    if loaded.has_default_address:
        # Browsers make no passkey for an address that is no name. http://127.0.0.1 leads here as well.
        settings = settings._replace(base_url=f"http://localhost:{settings.port}")
    refuse_others(settings, loaded.origins)
    if settings.socket is not None:
        raise Invalid(
            "--dev is for a browser, which cannot open a Unix socket",
            hint="leave --dev out, or add --port 8080",
        )
    origins = loaded.origins
    if origins["database"].source != COMMAND_LINE:
        database = settings.folder / TRIAL
        settings = settings._replace(database=database)
        # As if --db had named it, because other commands need --db for it.
        origins = origins | {"database": Origin(COMMAND_LINE, str(database))}
    # Without a mail server the emails stay in a folder, and /dev/mail shows them.
    settings = settings._replace(
        whitelist=(*settings.whitelist, REGISTRATION), mailer_host=None, processes=1, is_trial=True
    )
    table = TABLE + FOR_DEVELOPMENT
    if not settings.oauth_client_id:
        provider = SampleProvider(settings.base_url, new_token(), settings.redirect_uri(settings.oauth))
        settings = provider.settings(settings)._replace(oauth_label="Sample ID")
        table += provider.routes()
    behind = None if trial.app is None else application_at(trial.app, settings)
    return loaded._replace(settings=settings, origins=origins), table, behind


def refuse_others(settings: Settings, origins: dict[str, Origin]) -> None:
    """Raises Invalid for an address that is not of this machine."""
    needed = {}
    if not is_loopback(settings.host):
        needed["server.host"] = "--host 127.0.0.1"
    if not is_loopback(host_of(settings.base_url)):
        needed["baseUrl"] = f"--base-url http://localhost:{settings.port}"
    if needed:
        sources = ", ".join(f"{key}: {origins[key].source}" for key in needed)
        raise Invalid(
            f"--dev serves this machine only, not {settings.host} as {settings.base_url} ({sources})",
            hint=f"use {' '.join(needed.values())}, or leave --dev out",
        )


def add_people(service: Service) -> None:
    """Sample accounts in an empty database, without a password: an email of /dev/mail sets one."""
    accounts = service.accounts
    with accounts.all(UserFilter()) as users:
        if any(users):
            return
    for email, name in PEOPLE:
        accounts.create(accounts.newcomer(email, name), None, active=email != DEACTIVATED, by=SYSTEM)
