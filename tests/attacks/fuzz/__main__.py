"""Sends requests that the OpenAPI document allows, and requests that it forbids: `python -m tests.attacks.fuzz`."""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folder of `support`, which pytest adds by itself

from attacks.fuzz.run import CALLERS, fuzz


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.attacks.fuzz",
        description="Examples, coverage, fuzzing and stateful phases; 0 is all well.",
    )
    parser.add_argument("callers", nargs="*", metavar="CALLER", help=f"all if left out: {', '.join(CALLERS)}")
    parser.add_argument("--seconds", type=int, default=300, help="for each caller (%(default)s)")
    chosen = parser.parse_args()
    failed = 0
    for caller in chosen.callers or CALLERS:
        if caller not in CALLERS:
            parser.error(f"no caller {caller}; there are {', '.join(CALLERS)}")
        with tempfile.TemporaryDirectory(prefix="usersctl-fuzz-") as folder:
            print(f"--- as {caller} ---", flush=True)
            done = fuzz(
                Path(folder),
                caller,
                f"--max-time={chosen.seconds}",
                "--continue-on-failure",
                seconds=chosen.seconds * 2 + 120,
            )
            print(done.stdout + done.stderr, flush=True)
            failed += done.returncode != 0
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
