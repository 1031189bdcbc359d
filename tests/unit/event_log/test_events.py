"""What may be appended to a log."""

import pytest

from zeroeventhub import NewEvent
from zeroeventhub.errors import ConfigurationError


@pytest.mark.parametrize(
    "name", ["", " ", "ends with a space ", "a\0b", "\ud800", "x" * 201, 5, b"x"]
)
@pytest.mark.parametrize("attribute", ["type", "key", "id"])
def test_name_that_some_database_would_change_is_refused(attribute, name):
    """An event refuses a name that a database cuts, refuses or confuses with another."""
    with pytest.raises(ConfigurationError, match=attribute):
        NewEvent(**{"type": "placed", "data": {}, attribute: name})


@pytest.mark.parametrize("name", ["x", " begins", "Zoë", "漢字 😀", "x" * 200, "a\nb"])
def test_any_other_name_is_taken(name):
    """An event takes names of any characters."""
    assert NewEvent(name, {}, key=name, id=name).key == name


@pytest.mark.parametrize(
    "data", [float("nan"), {"a": {1, 2}}, "a\0b", {"a\0": 1}, 7, -0.5, 10**400, b" 1e2"]
)
def test_data_without_a_form_everywhere_is_refused(data):
    """An event refuses data that has no JSON, or JSON that some database does not keep as it is."""
    with pytest.raises(ConfigurationError):
        _ = NewEvent("placed", data).text


def test_backslash_before_a_u_is_no_escape():
    """An event takes a backslash in a text for what it is, and not for a part of U+0000."""
    assert NewEvent("placed", {"path": "C:\\u0000"}).text == '{"path":"C:\\\\u0000"}'


def test_id_is_random_and_stays():
    """Two events have two ids, and one event keeps its own."""
    one, other = NewEvent("placed", {}), NewEvent("placed", {})
    assert one.id != other.id
    assert one.id == one.id
