"""The benchmarks run, on a small scale. How fast anything is, no test asks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def benchmarks(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.benchmarks", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("measure", "promised"),
    [
        ("sessions", {0.75, 0.6, 0.85, 1.2, 0.95, 1}),
        ("logins", {0.9, 0.5, 50}),
        ("start", {2.2, 2000}),
        ("memory", {2.5, 1.1}),
        ("growth", {1.11, 1.5}),
        ("command", {2.2, 4}),
        ("import", {20000, 1.1}),
        ("export", {1.1}),
        ("cleanup", {200}),
    ],
)
def test_a_measure_prints_its_figures_and_their_promises(
    measure: str, promised: set[float], tmp_path: Path
) -> None:
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


def test_measures_are_chosen_by_name() -> None:
    refused = benchmarks("--quick", "nonsense")
    assert refused.returncode == 2
    assert (
        "no measure nonsense; there are sessions, logins, start, memory, growth, command, " in refused.stderr
    )
