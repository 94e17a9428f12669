"""The benchmarks run, on a small scale. How fast anything is, no test asks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster import binaries
from support.commands import Command
from support.proxies import needed
from support.servers import installed

from tests.benchmarks import command, quoted
from tests.benchmarks.frame import Bench, Figure
from usersctl.cli.tree import COMMANDS

ROOT = Path(__file__).parent.parent


def benchmarks(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.benchmarks", *words]
    # Coverage would only slow down what is measured.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("measure", "promised"),
    [
        ("sessions", {0.9, 1.3, 2, 0.95, 1}),
        ("stale", {0.9}),
        ("size", {0.95}),
        ("client", set()),
        ("logins", {0.95, 0.75, 20}),
        ("passkeys", {15}),
        ("start", {2.2, 2000}),
        ("memory", {1.6, 1.1}),
        ("growth", {1.5}),
        ("search", {10, 50}),
        ("views", {1.5, 50}),
        ("command", {2.2, 4}),
        ("import", {20000, 1.1}),
        ("export", {1.1}),
        ("cleanup", {20000, 100}),
        ("postgres", {0.35, 1.7, 0.95, 1.5, 10, 55, 0.9, 0.75, 20}),
    ],
)
def test_a_measure_prints_its_figures_and_their_promises(
    measure: str, promised: set[float], tmp_path: Path
) -> None:
    if os.environ.get("BENCHMARK_TESTS") != "required":
        pytest.skip("BENCHMARK_TESTS=required runs each measure, two minutes in all")
    needed("wrk")
    if measure == "sessions":  # Django is measured, too
        installed("django-admin", "applications")
    if measure == "postgres":
        binaries()
    files = ["--json", str(tmp_path / "figures.json"), "--markdown", str(tmp_path / "figures.md")]
    done = benchmarks("--quick", *files, measure)
    assert (done.returncode, done.stderr) == (0, "")
    written = json.loads((tmp_path / "figures.json").read_text("utf-8"))
    assert written["quick"] is True
    (figures,) = written["measures"].values()
    assert all(figure["median"] > 0 for figure in figures)
    assert {figure["at_most"] or figure["at_least"] for figure in figures} - {None} == promised
    assert all(figure["what"] in done.stdout for figure in figures)
    table = (tmp_path / "figures.md").read_text("utf-8")
    assert all(figure["what"].strip() in table for figure in figures)


@pytest.mark.slow
def test_the_benchmark_can_run_every_command(usersctl: Command, tmp_path: Path) -> None:
    bench = Bench(tmp_path, quick=True)
    database = command.prepared(bench, 10)
    commands = command.words_of_commands(COMMANDS)
    del commands["serve"]  # it does not end
    done = {name: usersctl(*words, env=command.fresh(bench, database)) for name, words in commands.items()}
    assert {name: ran for name, ran in done.items() if ran.code not in command.DONE} == {}


@pytest.mark.slow
def test_measures_are_chosen_by_name() -> None:
    refused = benchmarks("--quick", "nonsense")
    assert refused.returncode == 2
    assert (
        "no measure nonsense; there are sessions, stale, size, client, logins, passkeys, start, memory, "
        in refused.stderr
    )


@pytest.mark.slow
def test_a_missing_client_is_named_with_its_package(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "client"]
    refused = subprocess.run(
        command,
        cwd=ROOT,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 1
    assert "wrk is missing" in refused.stderr
    assert "apt-get install wrk" in refused.stderr


def test_a_figure_of_several_runs_has_the_median_of_each() -> None:
    runs = [Figure("rate", values, "times", at_least=2) for values in ([1, 2, 9], [4, 4, 4], [3, 3, 4])]
    figure = runs[0].with_runs(runs[1:])
    assert (figure.values, figure.median, figure.kept) == ([2, 4, 3], 3, True)


def test_the_documentation_quotes_the_figures_of_the_last_run() -> None:
    speed, readme = (page.read_text("utf-8") for page in quoted.PAGES)
    table = list(quoted.lines())
    assert "\n".join(table) in speed
    assert quoted.with_figures(speed) == speed
    assert quoted.with_figures(readme) == readme
    assert len([line for line in table if line in readme]) == 3


@pytest.mark.slow
def test_figures_are_published_of_complete_runs_only() -> None:
    refused = benchmarks("--publish", "--quick")
    assert (refused.returncode, "all measures" in refused.stderr) == (2, True)
