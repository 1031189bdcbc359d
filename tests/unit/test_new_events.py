"""What may be appended to a log."""

import msgspec
import pytest

from zeroeventhub import NewEvent
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.new_events import runs_of


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
    "data", [float("nan"), {"a": {1, 2}}, "a\0b", {"a\0": 1}, 7, -0.5, 10**400]
)
def test_data_without_a_form_everywhere_is_refused(data):
    """An event refuses data that has no JSON, or JSON that some database does not keep as it is."""
    with pytest.raises(ConfigurationError):
        _ = NewEvent("placed", data).text


@pytest.mark.parametrize("raw", [b" 1e2", b"", b"{oops", b'"\xff"', rb'"\ud800"', b"[" * 100_000])
def test_what_is_given_as_json_is_checked(raw):
    """An event refuses what is given as its JSON and is none, which would stop every reader."""
    with pytest.raises(ConfigurationError):
        _ = NewEvent("placed", msgspec.Raw(raw)).text


def test_backslash_before_a_u_is_no_escape():
    """An event takes a backslash in a text for what it is, and not for a part of U+0000."""
    assert NewEvent("placed", {"path": "C:\\u0000"}).text == '{"path":"C:\\\\u0000"}'


def test_id_is_random_and_stays():
    """Two events have two ids, and one event keeps its own."""
    one, other = NewEvent("placed", {}), NewEvent("placed", {})
    assert one.id != other.id
    assert one.id == one.id


def test_json_is_data_as_it_is():
    """Data that is JSON already stays the text that it is."""
    assert NewEvent("placed", msgspec.Raw(b'{"a":1.10}')).text == '{"a":1.10}'


@pytest.mark.parametrize("version", [-1, True, "1", 1.0])
def test_expected_version_is_a_whole_number(version):
    """An event refuses to expect what no key can have."""
    with pytest.raises(ConfigurationError, match="whole number"):
        NewEvent("placed", {}, key="ada", expected_version=version)
    with pytest.raises(ConfigurationError, match="without a key"):
        NewEvent("placed", {}, expected_version=0)


def expecting(*versions):
    """Events of keys with the versions that they expect."""
    return [NewEvent("placed", {}, key, expected_version=version) for key, version in versions]


def test_events_are_divided_into_runs():
    """Events of one key with versions are one run, and so are all others between two of these."""
    events = expecting(("a", None), ("b", None), ("c", 4), ("c", None), ("a", None), ("c", 6))
    runs = [(run.key, run.expected_version, len(run.events)) for run in runs_of(events)]
    assert runs == [(None, 0, 2), ("c", 4, 2), (None, 0, 1), ("c", 6, 1)]
    assert [one for run in runs_of(events) for one in run.events] == events


@pytest.mark.parametrize(
    "versions",
    [
        [("a", None), ("a", 0)],
        [("a", 0), ("a", 0)],
        [("a", 0), ("a", 2)],
        [("a", 3), ("b", 0), ("a", 3)],
    ],
)
def test_versions_of_a_key_follow_one_another(versions):
    """Events of a key whose versions leave a gap, or begin late, are refused."""
    with pytest.raises(ConfigurationError, match="do not follow"):
        [*runs_of(expecting(*versions))]
