"""Several daemons on one database, and a proxy that passes each connection on to one of them at random."""

import asyncio
import random
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from support.commands import Command
from support.daemons import Daemon, serving
from support.ports import free_port
from support.web import Client

from usersctl.store.conninfo import Conninfo

CONFIGURATION = """
baseUrl = "http://127.0.0.1:{proxy}"
[server]
port = {port}
processes = {processes}
[auth]
whitelist = ["/register"]
[passwordHashing]
rounds = 10
[limits]
enabled = false
"""


class Several:
    """Daemons, each with a folder and a configuration of its own, as on machines of their own."""

    def __init__(self, folder: Path, database: Conninfo, *, number: int, processes: int, more: str) -> None:
        self.ports = [free_port() for _ in range(number)]
        self.database = database
        self._stacks = [ExitStack() for _ in self.ports]
        self._daemons: list[Daemon | None] = [None] * number
        self._folder, self._processes, self._more = folder, processes, more
        self.proxy = 0
        self.kills = 0

    def command(self, index: int) -> Command:
        """The command on the machine of one daemon."""
        folder = self._folder / f"machine{index}"
        folder.mkdir(exist_ok=True)
        command = Command(folder)
        command.database = command.env["USERS_DATABASE"] = self.database  # type: ignore[assignment]
        values = {"proxy": self.proxy, "port": self.ports[index], "processes": self._processes}
        command.configure(CONFIGURATION.format_map(values) + self._more)
        return command

    def start(self, index: int) -> None:
        daemon = serving(self.command(index), port=self.ports[index])
        self._daemons[index] = self._stacks[index].enter_context(daemon)

    def kill(self, index: int) -> None:
        """SIGKILL of the daemon, with all its processes."""
        daemon = self._daemons[index]
        assert daemon is not None
        daemon.process.send_signal(signal.SIGKILL)
        assert daemon.process.wait(10) == -signal.SIGKILL
        self._stacks[index].close()
        self.kills += 1

    def events(self, name: str) -> list[dict[str, object]]:
        """Those of the daemons that run, since they were started."""
        return [line for daemon in self._daemons if daemon is not None for line in daemon.events(name)]

    def client(self, index: int | None = None) -> Client:
        """Of one daemon, or of the proxy."""
        return Client(self.proxy if index is None else self.ports[index])

    def stop(self) -> None:
        for stack in self._stacks:
            stack.close()

    @contextmanager
    def killed_meanwhile(self, kills: int, *, lives: tuple[float, float] = (0.1, 1.0)) -> Iterator[None]:
        """One daemon after the other is killed and started again, at random moments. At the end all have been."""
        stopping, wrong = threading.Event(), list[BaseException]()

        def kill_them() -> None:
            chance = random.Random(kills)
            try:
                while self.kills < kills:
                    stopping.wait(chance.uniform(*lives))
                    index = chance.randrange(len(self.ports))
                    self.kill(index)
                    self.start(index)
            except BaseException as error:  # noqa: BLE001 - the test fails with it at its end
                wrong.append(error)

        thread = threading.Thread(target=kill_them)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join(600)
        assert not wrong, wrong


@contextmanager
def several_daemons(
    folder: Path, database: Conninfo, *, number: int = 3, processes: int = 1, more: str = ""
) -> Iterator[Several]:
    daemons = Several(folder, database, number=number, processes=processes, more=more)
    with random_proxy(daemons.ports) as daemons.proxy:
        try:
            for index in range(number):
                daemons.start(index)
            yield daemons
        finally:
            daemons.stop()


@contextmanager
def random_proxy(ports: Sequence[int]) -> Iterator[int]:
    """Yields the port of the proxy. A port where nothing listens is passed by."""
    ready: threading.Event = threading.Event()
    loop, over, port = asyncio.new_event_loop(), asyncio.Event(), 0

    async def serve() -> None:
        nonlocal port
        server = await asyncio.start_server(relay, "127.0.0.1", 0, backlog=500)
        port = server.sockets[0].getsockname()[1]
        ready.set()
        await over.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for chosen in random.sample(ports, len(ports)):
            with suppress(OSError):
                there, to_there = await asyncio.open_connection("127.0.0.1", chosen)
                await asyncio.gather(pump(reader, to_there), pump(there, writer))
                return
        writer.close()

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await source.read(65536):
                    target.write(data)
                    await target.drain()
        finally:
            target.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(10)
        yield port
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
        loop.close()
