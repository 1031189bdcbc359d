"""Filters of event types, and the columns that they can be asked of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import (
    CHAR,
    JSON,
    Column,
    Enum,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    Uuid,
    create_engine,
    select,
)

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import NOTHING, TypeFilter
from zeroeventhub.publisher.type_condition import TypeCondition

names = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=";"), min_size=1
)


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a;b", ";", "a\n", "\ta", "\x7f", "\u00e5", "\u212a", "\u0130", "x" * 257],
    ids=lambda name: ascii(name[:9]),
)
def test_name_that_no_request_could_say_is_refused(name):
    """A name has 1 to 256 printable ASCII characters, without spaces and semicolons."""
    with pytest.raises(ConfigurationError):
        TypeFilter(frozenset({"placed", name}))


def test_filter_names_a_type():
    """A filter without names would be none."""
    with pytest.raises(ConfigurationError, match="at least one"):
        TypeFilter(frozenset())


def test_case_is_passed_over():
    """Filters that differ in the case of letters are the same, and let the same through."""
    one, other = (
        TypeFilter(frozenset({"Placed", "PAID"})),
        TypeFilter(frozenset({"placed", "paid"})),
    )
    assert (one, hash(one)) == (other, hash(other))
    assert [one.lets_through(name) for name in ("pLACED", "paid", "lost", "")] == [
        *(True, True, False, False)
    ]
    skipping = TypeFilter(one.names, skip=True)
    assert skipping != one
    assert [skipping.lets_through(name) for name in ("pLACED", "lost", "")] == [False, True, True]


few = st.frozensets(st.sampled_from(["a", "b", "c", "d"]), min_size=1)
filters = st.builds(TypeFilter, few, skip=st.booleans()) | st.just(NOTHING)


@given(filters, filters, st.lists(st.sampled_from(["a", "B", "c", "d", "e", ""])))
def test_joined_filters_let_through_what_both_do(one, other, kinds):
    """Two filters are one that lets through what both let through, also nothing."""
    joined = one.joined(other)
    assert joined == other.joined(one)
    for kind in kinds:
        assert joined.lets_through(kind) is (one.lets_through(kind) and other.lets_through(kind))
    column = Table("events", MetaData(), Column("kind", String)).c.kind
    for dialect in ("sqlite", "postgresql", "mysql"):
        assert TypeCondition(column, "", dialect).condition(joined) is not None


def test_filter_of_nothing_is_no_request():
    """What lets nothing through is made by joining filters, and equal to no other filter."""
    one, other = TypeFilter(frozenset({"a"})), TypeFilter(frozenset({"b"}))
    assert one.joined(other) == NOTHING != one
    assert one.joined(TypeFilter(one.names, skip=True)) == NOTHING
    assert not any(NOTHING.lets_through(name) for name in ("a", "", "\u00e5"))


@given(st.frozensets(names, min_size=1, max_size=5), st.booleans(), st.lists(names | st.text()))
def test_database_chooses_as_the_filter_says(chosen, skip, kinds):
    """What the database lets through is what the filter lets through."""
    types = TypeFilter(frozenset(name[:256] for name in chosen), skip=skip)
    kinds = [kind for kind in (*kinds, *chosen, *map(str.swapcase, chosen)) if kind.isascii()]
    kinds = [kind for kind in kinds if "\0" not in kind]
    engine = create_engine("sqlite://")
    kind = Table("events", MetaData(), Column("kind", String)).c.kind
    condition = TypeCondition(kind, "", "sqlite").condition(types)
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE events (kind TEXT COLLATE RTRIM)")
        for one in kinds:
            connection.exec_driver_sql("INSERT INTO events VALUES (?)", (one,))
        found = connection.scalars(select(kind).where(condition)).all()
    engine.dispose()
    assert found == [one for one in kinds if types.lets_through(one)]


@pytest.mark.parametrize(
    ("kind", "understood"),
    [
        (String(40), True),
        (Text(), True),
        (CHAR(4), True),
        (Enum("a", "b"), False),
        (Integer(), False),
        (JSON(), False),
        (Uuid(), False),
    ],
    ids=repr,
)
def test_types_are_text(kind, understood):
    """A column is filtered only if it holds types as they are sent."""
    assert TypeCondition.understands(Column("kind", kind)) is understood
