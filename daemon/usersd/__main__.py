"""`usersd` and `python -m usersd`: the same as `usersctl serve`."""

import sys

from usersctl.__main__ import main as usersctl


def main() -> None:
    sys.argv.insert(1, "serve")
    usersctl()


if __name__ == "__main__":
    main()
