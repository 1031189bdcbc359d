"""What may be appended to a log, and which events say the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import JSON, Column

from zeroeventhub import NewEvent
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.event_log.stored import same_value


@pytest.mark.parametrize(
    "name", ["", " ", "ends with a space ", "a\0b", "\ud800", "x" * 201, 5, b"x"]
)
@pytest.mark.parametrize("attribute", ["type", "key", "id"])
def test_name_that_some_database_would_change_is_refused(attribute, name):
    """A name that is cut, refused or confused with another by a database is refused at once."""
    with pytest.raises(ConfigurationError, match=attribute):
        NewEvent(**{"type": "placed", "data": {}, attribute: name})


@pytest.mark.parametrize("name", ["x", " begins", "Zoë", "漢字 😀", "x" * 200, "a\nb"])
def test_any_other_name_is_taken(name):
    """Names are of any characters."""
    assert NewEvent(name, {}, key=name, id=name).key == name


@pytest.mark.parametrize(
    "data", [float("nan"), {"a": {1, 2}}, "a\0b", {"a\0": 1}, 7, -0.5, 10**400, b" 1e2"]
)
def test_data_without_a_form_everywhere_is_refused(data):
    """Data is refused that has no JSON, or JSON that some database does not keep as it is."""
    with pytest.raises(ConfigurationError):
        _ = NewEvent("placed", data).text


def test_backslash_before_a_u_is_no_escape():
    """A backslash in a text is not taken for the beginning of U+0000."""
    assert NewEvent("placed", {"path": "C:\\u0000"}).text == '{"path":"C:\\\\u0000"}'


def test_id_is_random_and_stays():
    """Two events have two ids, and one event has one."""
    one, other = NewEvent("placed", {}), NewEvent("placed", {})
    assert one.id != other.id
    assert one.id == one.id


def same(one, other):
    """Whether two documents are the same to a log."""
    column = Column("data", JSON)
    return same_value(column, one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":[2]}', '{"b": [2], "a": 1}'),
        ('{"a":1.0}', '{"a": 1}'),
        ('{"a":1e2}', '{"a": 100}'),
        ('{"a":"\\u00eb"}', '{"a": "ë"}'),
    ],
)
def test_what_a_database_writes_in_another_way_is_the_same(one, other):
    """Order of keys, white space and the way numbers are written make no difference."""
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1}', '{"a":true}'),
        ('{"a":0}', '{"a":false}'),
        ('{"a":1}', '{"a":"1"}'),
        ('{"a":null}', "{}"),
        ("[1,2]", "[2,1]"),
    ],
)
def test_what_says_something_else_is_not_the_same(one, other):
    """A difference of values, of their types or of their order is a difference."""
    assert not same(one, other)


documents = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=6,
)


@given(documents, documents)
def test_documents_are_the_same_if_their_types_are(one, other):
    """Two documents say the same if Python's values and their types do."""

    def typed(value):
        match value:
            case dict():
                return {name: typed(each) for name, each in value.items()}
            case list():
                return [typed(each) for each in value]
        return type(value).__name__, value

    texts = [NewEvent("placed", [document]).text for document in (one, other)]
    assert same(*texts) is (typed(one) == typed(other))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1.0", "1", True),
        ("1e2", "100", True),
        (str(2**53), str(2**53 + 1), False),
        (str(2**53), str(float(2**53)), True),
        (str(10**30), str(10**30 + 1), True),
    ],
)
def test_numbers_of_64_bits_are_compared_to_the_last_digit(one, other, same):
    """What every database keeps exactly is the same only if all of it is."""
    column = Column("data", JSON)
    texts = (f'{{"n":[{number}]}}' for number in (one, other))
    assert same_value(column, *texts) is same
