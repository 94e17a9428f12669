"""Import and export of many rows: rows per second, and peak memory."""

import csv
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.frame import HASH, MOMENT, Bench, Figure, ratios, rounds

FLAT = 1.1  # times the memory for a hundredth, or a tenth, of the rows: constant, apart from noise


def measure_import(bench: Bench) -> Iterator[Figure]:
    few, many = bench.size(10_000, 100), bench.size(100_000, 1_000)
    files = {count: _people(bench.folder / f"people-{count}.csv", count) for count in (few, many)}
    ran = rounds(
        bench.size(3, 1),
        {
            str(count): lambda count=count: bench.usersctl(
                bench.database("import"), "import", str(files[count])
            )
            for count in (few, many)
        },
    )
    for count in (few, many):
        runs = ran[str(count)]
        at_least = 20_000 if count == many else None
        yield Figure(
            f"import of {count:,} users with hashes",
            [count / run.seconds for run in runs],
            "rows/s",
            at_least=at_least,
        )
        yield Figure("  its peak memory", [run.peak for run in runs], "MB")
    peaks = [[run.peak for run in ran[str(count)]] for count in (many, few)]
    yield Figure(f"  beside that of {few:,}", ratios(*peaks), "times", FLAT)


def measure_export(bench: Bench) -> Iterator[Figure]:
    few, many = bench.size(10_000, 100), bench.size(1_000_000, 1_000)
    databases = {count: bench.people(count) for count in (few, many)}
    for form in ("csv", "jsonl", "json"):
        target = bench.folder / f"people.{form}"
        ran = rounds(
            1,
            {
                str(count): lambda count=count, target=target: bench.usersctl(
                    databases[count], "export", str(target), "--with-hashes"
                )
                for count in (few, many)
            },
        )
        target.unlink()
        runs = ran[str(many)]
        yield Figure(f"export of {many:,} users, {form}", [many / run.seconds for run in runs], "rows/s")
        yield Figure("  its peak memory", [run.peak for run in runs], "MB")
        peaks = [[run.peak for run in ran[str(count)]] for count in (many, few)]
        yield Figure(f"  beside that of {few:,}", ratios(*peaks), "times", FLAT)


def _people(path: Path, count: int) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("email", "name", "role", "active", "password_hash", "created_at"))
        writer.writerows(
            (f"user{n}@example.com", f"User Number {n}", "user", "true", HASH, MOMENT) for n in range(count)
        )
    return path
