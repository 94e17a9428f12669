"""Start-up time of the command, beside a bare Python that imports what any such command needs."""

from collections.abc import Iterator

from tests.benchmarks.frame import BARE, START, Bench, Figure, add_users, filling, ratios, rounds


def measure(bench: Bench) -> Iterator[Figure]:
    users = bench.size(1_000, 100)
    database = bench.database("command")
    with filling(database) as connection:
        add_users(connection, users)
    env = bench.environment(database)
    # An editable installation that may not write byte code compiles the sources at every start.
    compiling = bench.environment(database, byte_code=False)
    listing, helping = ["-c", START, "list", "--json"], ["-c", START, "--help"]
    ran = rounds(
        bench.size(25, 1),
        {
            "bare": lambda: bench.run(["-c", BARE], env),
            "list": lambda: bench.run(listing, env),
            "help": lambda: bench.run(helping, env),
            "list, compiling": lambda: bench.run(listing, compiling),
            "help, compiling": lambda: bench.run(helping, compiling),
        },
    )
    seconds = {name: [run.seconds for run in runs] for name, runs in ran.items()}
    yield Figure(f'python -c "{BARE}"', [value * 1000 for value in seconds["bare"]], "ms")
    for name, title, at_most in (
        ("list", f"list --json of {users:,} users", 2.5),
        ("help", "--help", 4),
        ("list, compiling", f"list --json of {users:,} users, no byte code", None),
        ("help, compiling", "--help, no byte code", None),
    ):
        yield Figure(f"usersctl {title}", [value * 1000 for value in seconds[name]], "ms")
        yield Figure("  beside the bare one", ratios(seconds[name], seconds["bare"]), "times", at_most)
