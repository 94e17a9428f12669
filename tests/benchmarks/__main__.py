"""Measures the promised figures: `python -m tests.benchmarks`."""

import argparse
import json
import os
import platform
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import (
    cleanup,
    command,
    daemon,
    growth,
    logins,
    passkeys,
    postgres,
    quoted,
    search,
    sessions,
    transfer,
    views,
)
from tests.benchmarks.frame import Bench, Figure, Measure, Others

WIDE = 72
IDLE = 0.1  # cores that others may take on a machine that counts as idle

MEASURES: dict[str, Measure] = {
    "sessions": sessions.measure,
    "stale": sessions.measure_stale,
    "size": sessions.measure_size,
    "client": sessions.measure_client,
    "logins": logins.measure,
    "passkeys": passkeys.measure,
    "start": daemon.measure_start,
    "memory": daemon.measure_memory,
    "growth": growth.measure,
    "search": search.measure,
    "views": views.measure,
    "command": command.measure,
    "import": transfer.measure_import,
    "export": transfer.measure_export,
    "cleanup": cleanup.measure,
    "postgres": postgres.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Measures in real processes: medians of several rounds, and the least and the most of them.",
    )
    parser.add_argument(
        "measures", nargs="*", metavar="MEASURE", help=f"all if left out: {', '.join(MEASURES)}"
    )
    parser.add_argument("--runs", type=int, default=3, help="how often all of it is measured (3)")
    parser.add_argument(
        "--quick", action="store_true", help="small, once: to see that it works, not how fast"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all of it to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write it to FILE to be read")
    parser.add_argument(
        "--publish", action="store_true", help="write figures.md, and what the documentation quotes of it"
    )
    chosen = parser.parse_args()
    unknown = set(chosen.measures) - set(MEASURES)
    if unknown:
        parser.error(f"no measure {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    if chosen.publish and (chosen.measures or chosen.quick):
        parser.error("--publish takes the figures of all measures")
    if chosen.runs < 1:
        parser.error("--runs is at least 1")
    runs = 1 if chosen.quick else chosen.runs
    measured, others = _measured(chosen.measures or list(MEASURES), runs, quick=chosen.quick)
    machine = {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "runs": runs,
        "quick": chosen.quick,
        "others": _idleness(others),
    }
    print(_described(machine))
    print(f"{'':<{WIDE}} {'median':>9} {'least':>9} {'most':>9} {'':<11}promise")
    for figures in measured.values():
        for figure in figures:
            print(_line(figure, judged=not chosen.quick))
    if chosen.json:
        as_json = {name: [figure.as_json() for figure in figures] for name, figures in measured.items()}
        chosen.json.write_text(json.dumps({**machine, "measures": as_json}, indent=2) + "\n", "utf-8")
    markdown = "\n".join(_markdown(_described(machine), measured)) + "\n"
    if chosen.markdown:
        chosen.markdown.write_text(markdown, "utf-8")
    if chosen.publish:
        quoted.FIGURES.write_text(markdown, "utf-8")
        quoted.update()


def _measured(
    names: Sequence[str], runs: int, *, quick: bool
) -> tuple[dict[str, list[Figure]], dict[str, float]]:
    """The figures of each measure over all runs, and the most cores that other programs took meanwhile.

    A run measures everything once, so that a busy hour affects all measures alike.
    """
    figures: dict[str, list[dict[str, Figure]]] = {name: [] for name in names}
    others: dict[str, float] = dict.fromkeys(names, 0.0)
    with tempfile.TemporaryDirectory(prefix="usersctl-benchmarks-") as folder:
        bench = Bench(Path(folder), quick=quick)
        for run in range(runs):
            for name in names:
                began, beside = time.perf_counter(), Others()
                figures[name].append(dict(_with_titles(MEASURES[name](bench))))
                others[name] = max(others[name], beside.cores())
                took = time.perf_counter() - began
                print(f"run {run + 1} of {runs}: {name}, {took:.0f} s", flush=True)
    merged = {
        name: [figure.with_runs([run[title] for run in more]) for title, figure in first.items()]
        for name, (first, *more) in figures.items()
    }
    return merged, others


def _with_titles(figures: Iterator[Figure]) -> Iterator[tuple[str, Figure]]:
    """Each figure, with its name below that of the figure that it belongs to."""
    title = ""
    for figure in figures:
        if not figure.what.startswith("  "):
            title = figure.what
        yield f"{title} {figure.what}", figure


def _idleness(others: Mapping[str, float]) -> str:
    busy = {name: cores for name, cores in others.items() if cores > IDLE}
    if not busy:
        return "idle"
    return "NOT IDLE, cores that other programs took: " + " ".join(f"{k} {v:.2f}" for k, v in busy.items())


def _processor() -> str:
    """The name of the processor, as Linux reports it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _described(machine: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in machine.items())


def _markdown(machine: str, measured: Mapping[str, list[Figure]]) -> Iterator[str]:
    yield f"# Figures\n\nOf `python -m tests.benchmarks`: {machine}."
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
    return f"{figure.what:<{WIDE}} {numbers} {figure.unit:<11}{figure.promise}{verdict}".rstrip()


def _shown(value: float) -> str:
    return f"{value:>9,.0f}" if value >= 100 else f"{value:>9.2f}"


if __name__ == "__main__":
    main()
