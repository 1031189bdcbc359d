# Everything is set up by the commands themselves; they need Python 3.11 or newer, make and a
# package registry. Choose an interpreter with: make test PYTHON=python3.12

PYTHON ?= python3
PIP = -m pip --disable-pip-version-check --quiet
# Several processes of tests; each starts database servers of its own.
PYTEST = -m pytest --numprocesses=auto --durations=10
EVERYTHING = -m "" --hypothesis-profile=random

# Python keeps what it compiles, whatever the caller's environment says: a process starts in half the time.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo spark quick test test-all check docs links coverage screenshots mutants soak bench wheel clean

demo: .venv/demo
	.venv/bin/python examples/flights/demo.py

# A year of flights, caught up with and followed by Spark, with a Java of its own where there is none.
spark: .venv/spark
	JAVA_HOME="$$(.venv/bin/python tests/harness/java.py)" .venv/bin/python examples/flights/spark.py

# Unit tests, and integration tests on SQLite: under a minute. To import schemathesis, and to collect
# what it generates, takes every process two seconds.
quick: .venv/test
	.venv/bin/python $(PYTEST) --quick --hypothesis-profile=quick tests/unit tests/integration \
		--ignore=tests/integration/spark \
		--ignore=tests/integration/server/test_openapi.py -p no:schemathesis

# What every change must pass. The tests of one room: make test TESTS='tests/*/consumer'
test: check
	.venv/bin/python $(PYTEST) $(TESTS)

# Every ordering, database, driver and version of SQLAlchemy and Python, long torture, all of Spark.
test-all: check docs .venv-sqlalchemy-2.0/test
	.venv/bin/python $(PYTEST) $(EVERYTHING)
	.venv-sqlalchemy-2.0/bin/python $(PYTEST) tests/integration --ignore=tests/integration/spark
	$(PYTHON) tests/interpreters.py

check: .venv/test
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy
	.venv/bin/lint-imports

# The documentation as a site, which begins at build/site/index.html; a link or reference that leads
# nowhere fails.
docs: .venv/test
	.venv/bin/sphinx-build --fail-on-warning --nitpicky --quiet --conf-dir docs \
		--doctree-dir build/doctrees . build/site

# The links to other hosts, which need the network.
links: .venv/test
	.venv/bin/sphinx-build --builder linkcheck --quiet --conf-dir docs --doctree-dir build/doctrees . build/links

# Which lines and branches tests reach; the pages are in .coverage-html.
coverage: .venv/test
	.venv/bin/python $(PYTEST) --cov --cov-report=term:skip-covered --cov-report=html

# The screenshots of docs/console.md, by the tests that do what they show.
screenshots: .venv/test
	.venv/bin/python -m pytest -m "" --screenshots tests/acceptance/test_console.py

# Plants mistakes in a copy of the library: the tests have to notice. One room: make mutants ONLY=server
mutants: .venv/test
	.venv/bin/python tests/mutation_check.py --only "$(ONLY)"

# Everything that docs/reliability.md reports, to its sizes; some hours. One part: make soak PART=wire
soak: .venv/test
	.venv/bin/python tests/soak.py $(PART)

# Everything that docs/benchmarks.md reports, in about an hour. One part, and to the sizes
# of the document: make bench SUITE=drain OPTIONS='--events 1000000 --rows 10000000'
bench: .venv-bench/bench
	PYTHONPATH=tests .venv-bench/bin/python -m benchmarks $(SUITE) $(OPTIONS)

# A source distribution and a wheel in dist/, to install where there is no checkout.
wheel: .venv/test
	.venv/bin/python -m build --outdir dist

clean:
	rm -rf build .venv .venv-sqlalchemy-2.0 .venv-python3.* .venv-peer .venv-bench .venv-bench-peer

.venv/demo: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP) install --editable '.[demo]'
	touch $@

.venv/spark: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP) install 'pip>=25.1'
	.venv/bin/python $(PIP) install --editable '.[demo,spark]' --group spark
	touch $@

.venv/test: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP) install 'pip>=25.1'
	.venv/bin/python $(PIP) install --editable '.[demo]' --group test --group spark --group check --group docs
	touch $@

.venv-sqlalchemy-2.0/test: pyproject.toml
	$(PYTHON) -m venv .venv-sqlalchemy-2.0
	.venv-sqlalchemy-2.0/bin/python $(PIP) install 'pip>=25.1'
	.venv-sqlalchemy-2.0/bin/python $(PIP) install --editable '.[demo]' --group test 'sqlalchemy<2.1'
	touch $@

# An environment of its own, for what is compared with.
.venv-bench/bench: pyproject.toml
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python $(PIP) install 'pip>=25.1'
	.venv-bench/bin/python $(PIP) install --editable '.[demo]' --group test --group bench
	touch $@
