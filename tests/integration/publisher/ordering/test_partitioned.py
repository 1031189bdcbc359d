"""Partitioned and inherited tables."""

import pytest
from harness.log import (
    LOG,
    append,
)
from harness.ordering_table import (
    GATED,
    OBSERVED,
    OBSERVED_MARIADB,
    SEQUENCED,
    SEQUENCED_MARIADB,
    WATCHING,
    assert_refused,
    refusal,
    shows,
)
from sqlalchemy import BigInteger, Column, Integer, MetaData, Table
from sqlalchemy.exc import IntegrityError

# a partitioned table

PARTITIONED = Table(
    "log",
    MetaData(),
    Column("id", BigInteger, primary_key=True),
    Column("n", Integer, primary_key=True),
)


def publish_partitioned(log):
    """Publish a table whose events up to 1 are in one partition, and all others in another."""
    if log.database == "postgresql":
        log.run(
            "CREATE TABLE log (id bigint GENERATED ALWAYS AS IDENTITY, n integer, "
            "PRIMARY KEY (id, n)) PARTITION BY RANGE (n)",
            "CREATE TABLE log_low PARTITION OF log FOR VALUES FROM (0) TO (2)",
        )
        log.publish(PARTITIONED, position=None if log.ordering == "sequenced" else "id")
        log.run("CREATE TABLE log_high PARTITION OF log FOR VALUES FROM (2) TO (1000)")
    else:
        log.run(
            "CREATE TABLE log (id bigint AUTO_INCREMENT PRIMARY KEY, n integer) "
            "PARTITION BY RANGE (id) (PARTITION p_low VALUES LESS THAN (3), "
            "PARTITION p_high VALUES LESS THAN (1000))"
        )
        log.publish()
    log.write(0)
    assert log.news() == [0]


@shows("a partitioned table", *WATCHING, SEQUENCED, SEQUENCED_MARIADB)
def test_partitioned_table_is_published_whole(log):
    """Events of all partitions are in one order, those that came later among them."""
    publish_partitioned(log)
    log.assert_order_of(lambda slow: append(slow, 1))


@shows("a partitioned table", OBSERVED, OBSERVED_MARIADB, SEQUENCED, SEQUENCED_MARIADB)
def test_partition_may_be_written_to_directly(log):
    """Who writes to a partition by its own name writes events of the table."""
    publish_partitioned(log)
    leaf = "log_low" if log.database == "postgresql" else "log PARTITION (p_low)"
    log.assert_order_of(lambda slow: slow.exec_driver_sql(f"INSERT INTO {leaf} (n) VALUES (1)"))


@shows("a partitioned table", GATED)
def test_row_written_to_a_partition_directly_is_refused(log):
    """A row that has not passed the gate of its table is refused by the guard of its partition."""
    publish_partitioned(log)
    for leaf, number in (("log_low", 1), ("log_high", 2)):
        with pytest.raises(IntegrityError, match="before this INSERT"):
            log.run(f"INSERT INTO {leaf} (n) VALUES ({number})")
    log.write(2)
    assert log.news() == [2]


@shows("a partitioned table", OBSERVED, GATED, SEQUENCED)
def test_row_that_moves_to_another_partition(log):
    """A row that an UPDATE moves is new to its partition: to the guard, and to sequenced."""
    publish_partitioned(log)
    log.write(5, 6)
    assert log.news() == [5, 6]
    moved = "UPDATE log SET n = 1 WHERE n = 5"
    if log.ordering == "gated":
        with pytest.raises(IntegrityError, match="before this INSERT"):
            log.run(moved)
    else:
        log.run(moved)
    assert log.news() == ([1] if log.ordering == "sequenced" else [])


@pytest.mark.parametrize(
    "key", ["bigserial PRIMARY KEY", "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"]
)
@shows("a partitioned table", OBSERVED, GATED)
def test_partition_itself_is_refused(log, key):
    """A partition is refused in a sentence that names its table."""
    log.run(
        f"CREATE TABLE whole (id {key}, n integer) PARTITION BY RANGE (id)",
        "CREATE TABLE log PARTITION OF whole FOR VALUES FROM (1) TO (1000)",
    )
    assert_refused(log, "publish whole")


# inherited tables

HEIR = "CREATE TABLE more () INHERITS (log)"


@shows("inherited tables", OBSERVED)
def test_inherited_tables_are_watched(log):
    """Events of a table that inherits are seen, and its open writers hold back."""
    log.publish()
    log.run(HEIR)
    log.write(0)
    assert log.news() == [0]
    log.assert_order_of(lambda slow: slow.exec_driver_sql("INSERT INTO more (n) VALUES (1)"))


@shows("inherited tables", GATED, SEQUENCED)
def test_inherited_tables_are_refused(log):
    """A table that others inherit from is refused, whether they came before its trigger or not."""
    LOG.create(log.engine)
    log.run(HEIR)
    assert_refused(log, "inherit")
    log.run("DROP TABLE more")
    log.publish()
    log.run(HEIR)
    with refusal("inherit"):
        log.restarted().info()
