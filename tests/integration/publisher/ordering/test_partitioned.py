"""Partitioned tables: the events of all partitions are in one order."""

import pytest
from harness.log import append
from harness.ordering_table import (
    GATED,
    OBSERVED,
    OBSERVED_MARIADB,
    SEQUENCED,
    SEQUENCED_MARIADB,
    WATCHING,
    assert_refused,
    shows,
)
from sqlalchemy.exc import IntegrityError


@shows("a partitioned table", *WATCHING, SEQUENCED, SEQUENCED_MARIADB)
def test_partitioned_table_is_published_whole(bare):
    """Events of all partitions are in one order, those that came later among them."""
    bare.publish_partitioned()
    bare.assert_order_of(lambda slow: append(slow, 1))


@shows("a partitioned table", OBSERVED, OBSERVED_MARIADB, SEQUENCED, SEQUENCED_MARIADB)
def test_partition_may_be_written_to_directly(bare):
    """A writer to a partition by its own name writes events of the table."""
    bare.publish_partitioned()
    leaf = "log_low" if bare.database == "postgresql" else "log PARTITION (p_low)"
    bare.assert_order_of(lambda slow: slow.exec_driver_sql(f"INSERT INTO {leaf} (n) VALUES (1)"))


@shows("a partitioned table", OBSERVED, GATED, SEQUENCED)
def test_row_that_moves_to_another_partition(bare):
    """A row that an UPDATE moves is new to its partition: to the guard, and to sequenced."""
    bare.publish_partitioned()
    bare.assert_news(5, 6)
    moved = "UPDATE log SET n = 1 WHERE n = 5"
    if bare.ordering == "gated":
        with pytest.raises(IntegrityError, match="before this INSERT"):
            bare.run(moved)
    else:
        bare.run(moved)
    assert bare.news() == ([1] if bare.ordering == "sequenced" else [])


@pytest.mark.parametrize(
    "key",
    [
        "bigserial PRIMARY KEY",
        "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    ],
)
@shows("a partitioned table", OBSERVED, GATED, later=(GATED,))
def test_partition_itself_is_refused(bare, key):
    """A partition is refused in a sentence that names its table."""
    bare.run(
        f"CREATE TABLE whole (id {key}, n integer) PARTITION BY RANGE (id)",
        "CREATE TABLE log PARTITION OF whole FOR VALUES FROM (1) TO (1000)",
    )
    assert_refused(bare, "publish whole")
