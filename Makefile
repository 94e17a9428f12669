# What a contributor runs. Each target makes its environment first, if it is missing or out of date.
.PHONY: check test test-all test-postgres test-failover ci docs format

# Before each commit: style, types and the fast tests.
check: .venv/.made
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/python -m pytest -q -m fast

# Nearly all tests, in a few minutes, by the command of README.md.
test:
	python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/python -m pytest -q

# Before a change is proposed: all tests.
test-all: .venv/.made
	.venv/bin/python -m pytest -q --all

# All tests once more, with their databases on a PostgreSQL server, which they start in a temporary folder.
test-postgres: .venv/.made
	POSTGRES_TESTS=required .venv/bin/python -m pytest -q --postgres --all

# What becomes of a PostgreSQL server that fails over: alone, because limits of time are judged.
test-failover: .venv/.made
	POSTGRES_TESTS=required FAILOVER_TESTS=required .venv/bin/python -m pytest -q -n 0 tests/faults/test_failover.py

# What a change has to pass: packages, all tests with coverage, the pages in a browser. Needs root on Debian.
ci:
	bash .ci/run

# Writes what is generated from the code: the reference, the man page, the files beside the daemon.
docs: .venv/.made
	.venv/bin/python docs/generate.py

format: .venv/.made
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

.venv/.made: pyproject.toml
	python3 -m venv .venv
	.venv/bin/pip install -q -e '.[dev]'
	touch $@
