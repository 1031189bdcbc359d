# Everything is set up by the commands themselves; they need Python 3.11 or newer, make and a
# package registry. Choose an interpreter with: make test PYTHON=python3.12

PYTHON ?= python3
PIP = -m pip --disable-pip-version-check --quiet

.PHONY: demo spark test check soak bench clean

demo: .venv/demo
	.venv/bin/zeroeventhub demo

# A year of flights, caught up with and followed by Spark, with a Java of its own where there is none.
spark: .venv/spark
	JAVA_HOME="$$(.venv/bin/python tests/harness/java.py)" .venv/bin/python examples/spark/flights.py

# SQLAlchemy 2.1 for all tests, then 2.0 for those that send a database something of their own. Once
# is torture enough, and what HTTP makes of a page is the same with both.
ONCE = ordering/test_torture test_archive test_arrow test_authorize test_authorized_streams test_caching test_capacity \
	test_changing_partitions test_client test_client_extensions test_compressed test_conformance test_every_cut \
	test_frameworks test_histories test_kill_points test_killed_publisher test_kills_in_a_change \
	test_layout_at_every_line test_lease_chaos test_limits test_nginx test_nginx_mtls test_on_trio \
	test_openapi test_peer test_problem_answers test_proxy_answers test_publisher_metrics \
	test_publisher_secrets test_quota_endpoints test_random_faults test_read_ahead \
	test_reset_while_running test_seal_kills test_secrets test_server_sent_events test_shutdown test_trim_kills \
	test_trim_torture test_vectors test_wait

# As many processes as there are cores, each with database servers of its own.
PYTEST = -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile

test: check .venv-sqlalchemy-2.0/test
	.venv/bin/python $(PYTEST)
	.venv-sqlalchemy-2.0/bin/python $(PYTEST) tests/integration $(ONCE:%=--ignore=tests/integration/%.py) \
		--ignore=tests/integration/spark

check: .venv/test
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy
	.venv/bin/lint-imports

# Everything that docs/reliability.md reports, to its sizes; some hours. One part: make soak PART=wire
soak: .venv/test
	.venv/bin/python tests/soak.py $(PART)

# Everything that docs/benchmarks.md reports, in about a quarter of an hour. One part, and to the sizes
# of the document: make bench SUITE=drain OPTIONS='--events 1000000 --rows 10000000'
bench: .venv-bench/bench
	.venv-bench/bin/python -m benchmarks $(SUITE) $(OPTIONS)

clean:
	rm -rf .venv .venv-sqlalchemy-2.0 .venv-peer .venv-bench .venv-bench-peer

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
	.venv/bin/python $(PIP) install --editable '.[demo]' --group test --group spark --group check
	touch $@

.venv-sqlalchemy-2.0/test: pyproject.toml
	$(PYTHON) -m venv .venv-sqlalchemy-2.0
	.venv-sqlalchemy-2.0/bin/python $(PIP) install 'pip>=25.1'
	.venv-sqlalchemy-2.0/bin/python $(PIP) install --editable '.[demo]' --group test 'sqlalchemy<2.1'
	touch $@

# An environment of its own: uvicorn takes another event loop where uvloop is installed.
.venv-bench/bench: pyproject.toml
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python $(PIP) install 'pip>=25.1'
	.venv-bench/bin/python $(PIP) install --editable '.[demo]' --group test --group bench
	touch $@
