"""The table in docs/ordering.md: its columns, and which of its cells are shown by tests."""

import re
from pathlib import Path

import pytest

from harness.log import LOG, Case
from zeroeventhub.errors import ConfigurationError

DOCUMENT = Path(__file__).parents[2] / "docs" / "ordering.md"


OBSERVED = Case("observed on PostgreSQL", "postgresql", "observed")
OBSERVED_MARIADB = Case("observed on MariaDB, MySQL", "mariadb", "observed")
GATED = Case("gated", "postgresql", "gated")
SEQUENCED = Case("sequenced", "postgresql", "sequenced")
SEQUENCED_MARIADB = Case("sequenced", "mariadb", "sequenced")
SEQUENCED_SQLITE = Case("sequenced", "sqlite", "sequenced")
SINGLE_WRITER = Case("single-writer", "sqlite", "single-writer")

WATCHING = (OBSERVED, OBSERVED_MARIADB, GATED)
SEQUENCING = (SEQUENCED, SEQUENCED_MARIADB, SEQUENCED_SQLITE)
ON_SQLITE = (SEQUENCED_SQLITE, SINGLE_WRITER)
ON_SERVERS = (*WATCHING, SEQUENCED, SEQUENCED_MARIADB)
ALL = (*WATCHING, *SEQUENCING, SINGLE_WRITER)

ATTACHED = "a partition attached with rows (MariaDB, MySQL: EXCHANGE PARTITION)"

# A cell of sequenced speaks of three databases. This is what some of them do not have.
LACKING = {
    "CACHE above 1, descending or cycling numbers": {SEQUENCED_MARIADB, SEQUENCED_SQLITE},
    "two-phase commit": {SEQUENCED_SQLITE},
    "a partitioned table": {SEQUENCED_SQLITE},
    ATTACHED: {SEQUENCED_SQLITE},
    "inherited tables": {SEQUENCED_MARIADB, SEQUENCED_SQLITE},
    "a table without a log or without transactions": {SEQUENCED_SQLITE},
    "on a standby or replica": {SEQUENCED_SQLITE},
    "after a standby was promoted": {SEQUENCED_SQLITE},
}

SHOWN = set()  # pairs of a row and a case that a test shows


def for_each(*cases, later=()):
    """Run a test for each case of an ordering."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(
                case,
                id=f"{case.ordering}-{case.database}",
                marks=[pytest.mark.test_all] if case in later else [],
            )
            for case in cases
        ],
    )


def of_any(now, *cases):
    """Run a test for some orderings in `make test`, and for others in `make test-all`."""
    return for_each(*dict.fromkeys((*now, *cases)), later={*cases}.difference(now))


def shows(row, *cases, later=()):
    """Say which cells of the document a test shows, and run it for each of them."""
    SHOWN.update((row, case) for case in cases)
    return for_each(*cases, later=later)


def documented():
    """Read the cells of the document by row and column, except for those that cannot be."""
    table = re.search(r"^\| \| observed .*?\n\n", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line.strip("|").split("|") for line in table[0].splitlines() if line]
    (_, *columns), _, *rows = [[cell.strip() for cell in line] for line in lines]
    return {
        (row, column)
        for row, *cells in rows
        for column, cell in zip(columns, cells, strict=True)
        if cell != "cannot be"
    }


def assert_refused(log, complaint, table=LOG, **options):
    """Show that a table cannot be published, and what is said about it."""
    with refusal(complaint):
        log.publish(table, **options)


def refusal(complaint):
    """Expect that a feed refuses what it is over, in a sentence."""
    return pytest.raises(ConfigurationError, match=complaint)
