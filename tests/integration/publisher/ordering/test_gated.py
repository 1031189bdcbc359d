"""The gate: its triggers, the marks that writers leave, and what its guard refuses."""

from uuid import uuid4

import pytest
from harness.log import LOG, PARTITIONED, append
from harness.ordering_table import GATED, SEQUENCED, assert_refused, for_each, refusal, shows
from harness.published import install
from harness.statements import behind
from sqlalchemy.exc import IntegrityError

MARKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"


def marks(connection):
    """Count the marks that are left in the locks of all transactions."""
    return connection.exec_driver_sql(MARKS).scalar()


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE log DISABLE TRIGGER {first}",
        "ALTER TABLE log ENABLE TRIGGER {last}",
        "DROP TRIGGER {last} ON log",
        "COMMENT ON FUNCTION {function}() IS 'zeroeventhub, version 1'",
    ],
)
@for_each(GATED, SEQUENCED)
def test_disarmed_trigger_is_refused(log, case, change):
    """A trigger that is gone, not always on, or of another version, is none."""
    kind = "gate" if case == GATED else "note"
    function = log.count(f"SELECT proname FROM pg_proc WHERE proname LIKE 'zeroeventhub_{kind}%%'")
    gate = ("zeroeventhub_gate", "zeroeventhub_guard")
    first, last = gate if case == GATED else (function, function)
    log.run(change.format(first=first, last=last, function=function))
    with refusal("no (gate|trigger) of this version"):
        log.restarted().info()


@pytest.mark.parametrize("change", ["DISABLE", "ENABLE"])
@for_each(GATED, SEQUENCED)
def test_disarmed_trigger_of_a_partition_is_refused(bare, change):
    """A partition whose trigger was disabled, if only for a while, is refused until mended."""
    bare.publish_partitioned()
    source = bare.source(PARTITIONED, position=None if bare.ordering == "sequenced" else "id")
    bare.run(
        "CREATE TABLE leaf (id bigint NOT NULL, n integer NOT NULL)",
        "ALTER TABLE log ATTACH PARTITION leaf FOR VALUES FROM (1000) TO (2000)",
    )
    source.bind(bare.engine).info()
    bare.run("ALTER TABLE leaf DISABLE TRIGGER ALL")
    bare.write(1000)
    bare.run(f"ALTER TABLE leaf {change} TRIGGER ALL")
    with refusal("no (gate|trigger) of this version"):
        source.bind(bare.engine).info()
    with bare.engine.begin() as connection:
        source.install(connection)
    bare.write(1001)
    assert bare.news() == [1000, 1001]
    source.bind(bare.engine).info()


@for_each(GATED)
def test_gate_of_another_sequence_is_refused_until_it_is_installed_again(log):
    """A column that draws from another sequence needs a gate with the numbers of that one."""
    log.assert_news(0)
    log.run(
        'CREATE SEQUENCE "it\'s" START 9 OWNED BY log.id',
        "ALTER TABLE log ALTER id SET DEFAULT nextval('\"it''s\"')",
    )
    with refusal("no gate of this version"):
        log.restarted().info()
    install(log.source(), log.engine)
    log.feed = log.restarted()
    log.assert_order_of(lambda slow: append(slow, 1))
    with log.engine.connect() as slow:
        append(slow, 3)
        log.write(4)
        with log.engine.connect() as later:
            append(later, 5)
            slow.commit()
            assert log.news() == [3, 4]


@for_each(GATED, SEQUENCED)
def test_replica_role_does_not_pass_by_the_trigger(log):
    """Writers that switch off ordinary triggers, as replication does, are noted all the same."""
    with log.engine.connect() as slow:
        slow.exec_driver_sql("SET LOCAL session_replication_role = replica")
        append(slow, 1)
        log.write(2)
        seen = log.news()
        slow.commit()
    assert [*seen, *log.news()] == ([2, 1] if log.ordering == "sequenced" else [1, 2])


@pytest.mark.parametrize("forward", [3_000_000_000, 4_000_000_000])
@for_each(GATED)
def test_open_writer_is_waited_for_while_the_sequence_is_set_forward(log, forward):
    """A writer whose mark is billions of numbers below the last one holds back what follows."""
    log.assert_news(0)
    with log.engine.connect() as slow:
        append(slow, 1)
        log.run(f"SELECT setval('log_id_seq', {forward})")
        log.write(2)
        assert log.news() == []
        slow.commit()
    assert log.news() == [1, 2]


@shows("a savepoint rolled back", GATED)
def test_mark_of_a_savepoint_rolled_back_goes(log):
    """A writer who rolled back holds nothing back, and takes one lock however often it writes."""
    with log.engine.connect() as slow:
        savepoint = slow.begin_nested()
        append(slow, 0, 0, 0)
        assert marks(slow) == 1
        log.write(1)
        assert log.news() == []
        savepoint.rollback()
        assert log.news() == [1]
        append(slow, 2)
        log.write(3)
        assert log.news() == []
        slow.commit()
    assert log.news() == [2, 3]


@pytest.mark.parametrize("start", [1, 2**32])
@for_each(GATED)
def test_first_number_of_a_sequence_lies_above_the_mark(log, start):
    """A sequence that has been set but not drawn from yields a mark below its next number."""
    log.run(f"SELECT setval('log_id_seq', {start}, false)")
    with log.engine.connect() as slow:
        append(slow, 0)
        log.write(1)
        assert (log.news(), log.feed.horizon().settled) == ([], start - 1)
        slow.commit()
    assert log.news() == [0, 1]


@pytest.mark.parametrize("step", range(4))
@for_each(GATED)
def test_writer_that_comes_later_does_not_set_the_horizon_back(log, step):
    """A mark that is left while the horizon is read lies above it, and leaves it where it is."""
    log.write(0)
    with log.engine.connect() as slow:

        def come():
            log.write(1)
            append(slow, 2)

        with behind(log.engine, step, come):
            assert log.feed.horizon().settled in {1, 2}


@for_each(GATED)
def test_mark_is_found_when_its_bits_have_come_round(log):
    """A mark below a power of two holds back numbers above it."""
    log.run(f"SELECT setval('log_id_seq', {2**32 - 2})")
    with log.engine.connect() as slow:
        append(slow, 0)
        log.write(1, 2, 3)
        assert log.feed.horizon().settled == 2**32 - 2
        assert log.news() == []
        slow.commit()
    assert log.news() == [0, 1, 2, 3]


@shows("a number handed in by a client", GATED)
def test_number_handed_in_is_refused_by_the_guard(log):
    """A number that was drawn before its INSERT began is refused, with what to do."""
    log.write(0, 1)
    drawn = log.count("SELECT nextval('log_id_seq')")
    for number in (1, drawn):
        with pytest.raises(IntegrityError, match=r"drawn before this INSERT(.|\n)*leave id out"):
            log.run(f"INSERT INTO log (id, n) VALUES ({number}, 9)")
    log.write(2)
    assert log.news() == [0, 1, 2]


@for_each(GATED)
def test_writer_needs_no_right_but_to_insert(log):
    """The gate reads a sequence that writers may but draw from, and obeys none of their names."""
    writer = f"writer_{uuid4().hex}"
    names = (
        "current_setting(text, boolean)",
        "set_config(text, text, boolean)",
        "pg_sequence_last_value(regclass)",
        "pg_advisory_xact_lock_shared(integer, integer)",
    )
    stolen = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'stolen'; END $$"
    with log.engine.connect() as connection:
        for statement in (
            f"CREATE ROLE {writer}",
            f"CREATE SCHEMA evil AUTHORIZATION {writer}",
            f"GRANT INSERT (n) ON log TO {writer}",
            f"GRANT UPDATE ON SEQUENCE log_id_seq TO {writer}",
            f"SET LOCAL ROLE {writer}",
            "CREATE DOMAIN evil.text AS pg_catalog.text CHECK (false)",
            "CREATE DOMAIN evil.oid AS pg_catalog.oid CHECK (false)",
            "CREATE DOMAIN evil.regclass AS pg_catalog.regclass CHECK (false)",
            *(f"CREATE FUNCTION evil.{name} RETURNS boolean {stolen}" for name in names),
            f"CREATE FUNCTION evil.same(text, text) RETURNS boolean {stolen}",
            f"CREATE FUNCTION evil.same(bigint, bigint) RETURNS bigint {stolen}",
            f"CREATE FUNCTION evil.less(bigint, integer) RETURNS bigint {stolen}",
            "CREATE OPERATOR evil.<> (FUNCTION = evil.same, LEFTARG = text, RIGHTARG = text)",
            "CREATE OPERATOR evil.& (FUNCTION = evil.same, LEFTARG = bigint, RIGHTARG = bigint)",
            "CREATE OPERATOR evil.- (FUNCTION = evil.less, LEFTARG = bigint, RIGHTARG = integer)",
            "SET LOCAL search_path = evil, pg_catalog, public",
        ):
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql("INSERT INTO public.log (n) VALUES (1)")
        assert marks(connection) == 1


@shows("a partitioned table", GATED)
def test_row_written_to_a_partition_directly_is_refused(bare):
    """A row that has not passed the gate of its table is refused by the guard of its partition."""
    bare.publish_partitioned()
    for leaf, number in (("log_low", 1), ("log_high", 2)):
        with pytest.raises(IntegrityError, match="before this INSERT"):
            bare.run(f"INSERT INTO {leaf} (n) VALUES ({number})")
    bare.assert_news(2)


@shows("inherited tables", GATED, SEQUENCED)
def test_inherited_tables_are_refused(bare):
    """A table that others inherit from is refused, whether they came before its trigger or not."""
    heir = "CREATE TABLE more () INHERITS (log)"
    LOG.create(bare.engine)
    bare.run(heir)
    assert_refused(bare, "inherit")
    bare.run("DROP TABLE more")
    bare.publish()
    bare.run(heir)
    with refusal("inherit"):
        bare.restarted().info()
