"""Measures the promised figures: `python -m tests.benchmarks`."""

import argparse
import json
import os
import platform
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks import cleanup, command, daemon, growth, logins, sessions, transfer
from tests.benchmarks.frame import Bench, Figure, Measure

MEASURES: dict[str, Measure] = {
    "sessions": sessions.measure,
    "logins": logins.measure,
    "start": daemon.measure_start,
    "memory": daemon.measure_memory,
    "growth": growth.measure,
    "command": command.measure,
    "import": transfer.measure_import,
    "export": transfer.measure_export,
    "cleanup": cleanup.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Measures in real processes: medians of several rounds, and the least and the most of them.",
    )
    parser.add_argument(
        "measures", nargs="*", metavar="MEASURE", help=f"all if left out: {', '.join(MEASURES)}"
    )
    parser.add_argument("--quick", action="store_true", help="small: to see that it works, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all of it to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write it to FILE to be read")
    chosen = parser.parse_args()
    unknown = set(chosen.measures) - set(MEASURES)
    if unknown:
        parser.error(f"no measure {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    machine = {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "quick": chosen.quick,
    }
    print(_described(machine))
    print(f"{'':<52} {'median':>9} {'least':>9} {'most':>9} {'':<9}promise")
    measured: dict[str, list[Figure]] = {}
    with tempfile.TemporaryDirectory(prefix="usersctl-benchmarks-") as folder:
        bench = Bench(Path(folder), quick=chosen.quick)
        for name in chosen.measures or MEASURES:
            measured[name] = []
            for figure in MEASURES[name](bench):
                measured[name].append(figure)
                print(_line(figure, judged=not chosen.quick), flush=True)
    if chosen.json:
        figures = {name: [figure.as_json() for figure in listed] for name, listed in measured.items()}
        chosen.json.write_text(json.dumps({**machine, "measures": figures}, indent=2) + "\n", "utf-8")
    if chosen.markdown:
        chosen.markdown.write_text("\n".join(_markdown(_described(machine), measured)) + "\n", "utf-8")


def _processor() -> str:
    """The name of the processor, as Linux reports it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _described(machine: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in machine.items())


def _markdown(machine: str, measured: Mapping[str, list[Figure]]) -> Iterator[str]:
    yield f"# Counters\n\nOf `python -m tests.benchmarks`: {machine}."
    for name, figures in measured.items():
        yield f"\n## {name}\n\n| what | median | least to most | | promised |\n|---|---:|---:|---|---|"
        for figure in figures:
            median, least, most = (
                _shown(value).strip() for value in (figure.median, min(figure.values), max(figure.values))
            )
            what = figure.what.replace("  ", "— ", 1) if figure.what.startswith("  ") else figure.what
            yield f"| {what} | {median} | {least} to {most} | {figure.unit} | {figure.promise} |"


def _line(figure: Figure, *, judged: bool) -> str:
    numbers = " ".join(_shown(value) for value in (figure.median, min(figure.values), max(figure.values)))
    verdict = {True: " kept", False: " NOT KEPT", None: ""}[figure.kept if judged else None]
    return f"{figure.what:<52} {numbers} {figure.unit:<9}{figure.promise}{verdict}".rstrip()


def _shown(value: float) -> str:
    return f"{value:>9,.0f}" if value >= 100 else f"{value:>9.2f}"


if __name__ == "__main__":
    main()
