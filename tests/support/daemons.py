"""Runs the real daemon in its own process on a free port."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.commands import Command, forks
from support.forked import Forked
from support.ports import free_port
from support.web import Client

TIME_LIMIT = 20


def wait_for(what: Callable[[], Any], seconds: float = TIME_LIMIT) -> Any:
    """Calls `what` until its result is true, and returns that result."""
    until = time.monotonic() + seconds
    while not (result := what()):
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)
    return result


@dataclass
class Daemon:
    process: subprocess.Popen[bytes] | Forked
    port: int
    file: Path

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == name]

    def client(self) -> Client:
        return Client(self.port)

    def stop(self, signum: int = signal.SIGTERM) -> int:
        self.process.send_signal(signum)
        return self.process.wait(TIME_LIMIT)


@contextmanager
def serving(
    usersctl: Command,
    *words: str,
    module: Sequence[str] = ("usersctl", "serve"),
    env: dict[str, str] | None = None,
    port: int | None = None,
) -> Iterator[Daemon]:
    """Without `port` a free one is passed as a flag; otherwise `port` is what the words or the configuration set."""
    flags = ["--port", str(free_port())] if port is None else []
    port = port or int(flags[1])
    file = usersctl.folder / f"daemon-{port}.log"
    place: Any = {"env": usersctl.env | (env or {}), "cwd": usersctl.folder}
    process: subprocess.Popen[bytes] | Forked
    with Path(os.devnull).open("rb") as nothing, file.open("wb") as log:
        command = [*module, *flags, *words]
        if module[0] == "usersctl" and forks().can_run(command, place["env"]):
            streams = nothing.fileno(), log.fileno(), log.fileno()
            process = forks().start(command[1:], streams=streams, **place)
        else:
            start = [sys.executable, "-m", *command]
            process = subprocess.Popen(start, stdin=nothing, stdout=log, stderr=log, **place)
    daemon = Daemon(process, port, file)
    try:
        wait_for(lambda: process.poll() is not None or b'"listening"' in file.read_bytes())
        assert process.poll() is None, file.read_text()
        yield daemon
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
            try:
                process.wait(8)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait(8)
