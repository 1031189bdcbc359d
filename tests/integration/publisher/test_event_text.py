"""Events that PostgreSQL makes the JSON of are to the byte those that are made of rows."""

import enum
from datetime import UTC, datetime, timedelta, timezone

import pytest
import sqlalchemy as sa
from harness.statements import add, execute
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql as pg

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.errors import Diverged, FeedFailure

ROWS = 40


class State(enum.Enum):
    """A state with a label that JSON has to escape."""

    new = 1
    paid = 2


letters = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
naive = st.datetimes()
aware = st.datetimes(
    datetime(1, 1, 2),  # noqa: DTZ001 - Hypothesis wants bounds without a zone
    datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]),
)
short = st.integers(-(2**31), 2**31 - 1)
kinds = {
    "small": (sa.SmallInteger(), st.integers(-(2**15), 2**15 - 1)),
    "count": (sa.Integer(), short),
    "large": (sa.BigInteger(), st.integers(-(2**63), 2**63 - 1)),
    "paid": (sa.Boolean(), st.booleans()),
    "amount": (sa.Numeric(), st.decimals(allow_nan=False, allow_infinity=False, places=5)),
    "note": (sa.Text(), letters),
    "code": (sa.CHAR(5), st.sampled_from(["a", "abcde", ""])),
    "state": (sa.Enum(State), st.sampled_from(State)),
    "uuid": (sa.Uuid(), st.uuids()),
    "seen": (sa.DateTime(timezone=True), aware),
    "told": (sa.DateTime(), naive),
    "day": (sa.Date(), st.dates()),
    "address": (pg.INET(), st.ip_addresses().map(str)),
    "document": (pg.JSONB(), st.dictionaries(letters, short | letters | st.none(), max_size=3)),
}
rows = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in kinds.items()})
metadata = sa.MetaData()
log = sa.Table(
    "log",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    *(sa.Column(name, kind) for name, (kind, _) in kinds.items()),
)
forms = {
    "all columns": {},
    "some by name": {
        "data": {
            "a \"'%:b": "note",
            "twice": sa.cast(log.c.count, sa.BigInteger) * 2,
            "c\\": "seen",
        }
    },
    "document alone": {"data": "document"},
    "an envelope": {"data": ["note", "count"], "cloudevents": "/shop?a=%1:b'\"\\"},
    "an envelope of text": {
        "data": "document",
        "cloudevents": True,
        "id": "note",
        "type": "state",
        "key": "code",
        "time": "seen",
    },
    "an envelope of numbers": {
        "data": "document",
        "cloudevents": "x",
        "id": "uuid",
        "type": "count",
        "key": "amount",
        "time": "told",
    },
}


def events(engine, table=log, **options):
    """The events of a table, as JSON."""
    feed = TableFeed(table, **options).bind(engine)
    return [event.raw for event in feed.read(0, FIRST, ROWS).events]


def of_rows(engine, table=log, **options):
    """The same, made of rows, for PostgreSQL makes no headers."""
    return events(engine, table, headers={"id": "id"}, **options)


@pytest.fixture
def oslo(postgresql):
    """A database whose sessions have a time zone of their own."""
    metadata.create_all(postgresql)
    options = {"options": "-c TimeZone=Europe/Oslo"}
    engine = sa.create_engine(postgresql.url, connect_args=options)
    yield engine
    engine.dispose()


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows, min_size=1, max_size=ROWS))
def test_events_are_the_same_whoever_makes_their_json(oslo, values):
    """Whatever is in a row, PostgreSQL and a publisher of other databases make the same of it."""
    with oslo.begin() as connection:
        connection.execute(sa.text("TRUNCATE log RESTART IDENTITY"))
        connection.execute(sa.insert(log), values)
    for options in forms.values():
        assert events(oslo, **options) == of_rows(oslo, **options)


def test_cursor_holds_in_the_history_that_it_was_given_for(oslo):
    """What a cursor holds of an event is what is compared with it when it is used."""
    add(oslo, log, [{"note": "å\n"}, {"note": "b"}])
    feeds = [TableFeed(log, **options).bind(oslo) for options in forms.values()]
    read = [(feed, feed.read(0, FIRST, 1).cursor) for feed in feeds]
    assert [len(feed.read(0, cursor, 1).events) for feed, cursor in read] == [1] * len(read)
    changed = {"note": "o", "document": {}, "count": 7, "seen": datetime.now(UTC)}
    execute(oslo, sa.update(log).where(log.c.id == 1).values(changed))
    for feed, cursor in read:
        with pytest.raises(Diverged):
            feed.read(0, cursor, 1)


@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("declared", [True, False])
def test_zone_is_told_by_the_table_and_not_by_its_declaration(oslo, *, aware, declared):
    """A moment is in UTC if the database knows its zone, or it is declared to have one."""

    def table(*, zone):
        identity = sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True)
        moment = sa.Column("at", sa.DateTime(timezone=zone))
        return sa.Table("moments", sa.MetaData(), identity, moment)

    real, said = table(zone=aware), table(zone=declared)
    real.create(oslo)
    moment = datetime(2020, 7, 1, 12, 30, 0, 120_000, tzinfo=UTC if aware else None)
    execute(oslo, sa.insert(real).values(at=moment))
    end = "Z" if aware or declared else ""
    (raw,) = events(oslo, said, data=["at"])
    assert [raw] == of_rows(oslo, said, data=["at"])
    assert raw.decode() == f'{{"at":"2020-07-01T12:30:00.120000{end}"}}'


@pytest.mark.parametrize("column", ["seen", "told", "day"])
def test_time_without_a_form_is_an_error(oslo, column):
    """A moment or a day that ISO 8601 has no form for is refused, and not published as another."""
    for value in ["infinity", "-infinity", "0044-03-15 BC", "10001-01-01"]:
        execute(oslo, "TRUNCATE log", f"INSERT INTO log ({column}) VALUES ('{value}')")
        for read in (events, of_rows):
            with pytest.raises(FeedFailure):
                read(oslo, data=[column])


def test_sequenced_events_are_the_same(oslo):
    """With positions beside the table, events have the same JSON as those made of rows."""
    with oslo.begin() as connection:
        TableFeed(log, ordering="sequenced").install(connection)
        connection.execute(sa.insert(log), {"note": "å", "paid": True, "seen": datetime.now(UTC)})
    for one in ({**options, "ordering": "sequenced"} for options in forms.values()):
        assert events(oslo, **one) == of_rows(oslo, **one)
