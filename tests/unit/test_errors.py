"""What errors say, in words that a terminal or a log can show."""

import pytest

from zeroeventhub import errors


@pytest.mark.parametrize(
    ("text", "options", "shown"),
    [
        ("plain é 漢", {}, "plain é 漢"),
        ("a\nb\r\x1b[2J", {}, "a\\nb\\r\\x1b[2J"),
        ("\x9b31m \u202etxt", {}, "\\x9b31m \\u202etxt"),
        ("a\nb\tc", {"keep": "\n"}, "a\nb\\tc"),
        ("abcdef", {"longest": 3}, "abc…"),
        ("abc", {"longest": 3}, "abc"),
    ],
)
def test_foreign_text_cannot_leave_its_line(text, options, shown):
    """What cannot be printed is escaped, unless it may stay, and what is too long is cut."""
    assert errors.printable(text, **options) == shown


def test_missing_package_is_named_by_its_distribution():
    """What is not installed is named as pip knows it, with the extra that installs it."""
    errors.require("json", extra="sql", user="A reader")
    with pytest.raises(errors.MissingExtra) as raised:
        errors.require("no_such_package", extra="sql", user="A reader")
    assert str(raised.value).startswith("A reader needs the package no_such_package: pip install")
    assert "no-such-package" in str(raised.value)
    assert "[sql]" in str(raised.value)


def test_problems_have_names_of_their_own():
    """Every problem document names one kind of error, by which a client knows it again."""
    kinds = [one for one in vars(errors).values() if isinstance(one, type)]
    named = [
        one.problem for one in kinds if issubclass(one, errors.FeedError) and "problem" in vars(one)
    ]
    assert len(named) == len({*named}) > 5
