"""Runs schemathesis against a daemon and its OpenAPI document."""

import os
import subprocess
import sys
from pathlib import Path

from support.commands import OPERATOR, PASSWORD, create_user
from support.web import running

from usersctl.config import Settings
from usersctl.service import build

HERE = Path(__file__).parent
CALLERS = ("admin", "user", "nobody")


def fuzz(folder: Path, caller: str, *options: str, seconds: int) -> subprocess.CompletedProcess[str]:
    """The finished run, which is stopped after `seconds`."""
    settings = Settings(
        database=folder / "users.db",
        base_url="http://127.0.0.1:8080",
        rounds=4,
        whitelist=("/register",),
        limits_enabled=False,
    )
    service = build(settings)
    for name in ("ada", "grace", "alan"):
        create_user(service, f"{name}@example.com", name.title(), PASSWORD, by=OPERATOR)
    with running(service, listening=None) as site:
        url = f"http://127.0.0.1:{site.port}"
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")),
                "--config-file",
                str(HERE / "schemathesis.toml"),
                "run",
                f"{url}/api/users/openapi.json",
                f"--url={url}",
                *options,
            ],
            env=os.environ
            | {
                "SCHEMATHESIS_HOOKS": str(HERE / "hooks.py"),
                "USERS_DATABASE": str(settings.database),
                "FUZZ_AS": caller,
            },
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        crashes = [line for line in site.log if line["event"] == "error"]
    service.close()
    assert not crashes, crashes
    return done
