"""Dead letters on every database: what is kept of an event, and in which order it comes again."""

import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from harness.statements import execute
from harness.stores import NAME, at, beside, call, claim, new_store, outcome
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import delete, select

from zeroeventhub import Event
from zeroeventhub.errors import ConfigurationError

NUL, LONE = "\0", "\ud800"


def failure(text="no"):
    """Return an error that was raised, so that it has a traceback."""
    with pytest.raises(ValueError, match=re.escape(text)) as raised:
        raise ValueError(text)
    return raised.value


def add(store, number, *, key=None, held=False, partition=0, name=NAME):
    """Set an event aside."""
    why = {"error": None, "tries": 0} if held else {"error": failure(), "tries": 3}
    call(store, store.dead_letters.add, partition, Event.of(number), key=key, **why, name=name)


def letters(store, **options):
    """Return all letters."""
    return call(store, store.dead_letters.letters, **options)


def due(store, partition=0, limit=100):
    """Return the numbers of the events that are to be applied now."""
    found = call(store, store.dead_letters.due, partition, limit=limit)
    return [letter.event.data for letter in found]


def mark(store, *numbers):
    """Mark letters, by the numbers of their events."""
    ids = [one.id for one in letters(store) if one.event.data in numbers]
    return call(store, store.dead_letters.retry, ids)


def test_letter_holds_what_there_is_to_know(store):
    """The event comes back byte for byte, with the error, where it happened, and how often."""
    raw = b'{"id": "\xc3\xa9\xf0\x9f\x8e\x89", "n": 1.0e2, "x":"\\u0000", "long": "%s"}'
    event = Event(raw % (b"\xc3\xa9" * 100_000), {"h": "\0 \ud800 é"})
    error = failure("no such customer")
    call(store, store.dead_letters.add, 3, event, key="ä ", error=error, tries=4)
    (letter,) = letters(store)
    assert (letter.event, letter.partition, letter.key) == (event, 3, "ä ")
    assert (letter.consumer, letter.tries, letter.state) == (NAME, 4, "failed")
    assert letter.error == "ValueError: no such customer"
    assert "in failure" in letter.traceback
    assert timedelta(seconds=-5) < datetime.now(UTC) - letter.created_at < timedelta(seconds=60)
    assert call(store, store.dead_letters.get, letter.id) == letter


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError(f"a{NUL}b{LONE}c"), "ValueError: a\\x00b\\ud800c"),
        (ValueError("é" * 1_000_000), "é\n…\né"),
    ],
)
def test_any_error_can_be_kept(store, error, shown):
    """No error costs the letter, whatever its text holds, and however much of it."""
    call(store, store.dead_letters.add, 0, Event.of(1), key=None, error=error, tries=1)
    (letter,) = letters(store)
    assert shown in letter.error
    assert shown in letter.traceback
    assert len(letter.traceback) < 200_000
    call(store, store.dead_letters.retry)
    with store.engine.begin() as connection:
        store.dead_letters.failed_again(connection, letter, error, 2)
    (again,) = letters(store)
    assert (again.error, again.tries, again.state) == (letter.error, 2, "failed")


def test_keys_are_told_apart(store):
    """A key blocks itself alone: not one of another case, length, or with a space more."""
    keys = {"a", "A", "a ", "ä", "a\0", "", LONE, "x" * 100_000, "x" * 99_999, "🎉"}
    blocked = store.dead_letters.blocked
    for number, key in enumerate(sorted(keys)):
        add(store, number, key=key)
        assert call(store, blocked, keys) == set(sorted(keys)[: number + 1])
    assert call(store, blocked, keys, name="audit") == set()
    assert call(store, blocked, []) == set()


def test_many_keys_are_asked_about(store):
    """A page of more keys than a database takes in one statement is asked about, to the last."""
    keys = list(map(str, range(40_000)))
    for key in ("1", "7000", "39999"):
        add(store, 1, key=key)
    assert call(store, store.dead_letters.blocked, keys) == {"1", "7000", "39999"}


@pytest.mark.parametrize("act", ["retry", "discard"])
def test_many_letters_are_named(store, act):
    """Letters are marked or discarded by more numbers than a statement has parameters."""
    for number in range(3):
        add(store, number)
    first, _, last = (one.id for one in letters(store))
    numbers = [first, *range(last + 1, last + 70_000), last]
    assert call(store, getattr(store.dead_letters, act), numbers) == 2
    assert [one.event.data for one in letters(store) if one.state == "failed"] == [1]


def test_letters_are_those_of_a_consumer_and_a_partition(store):
    """Letters are marked, discarded and due for themselves, and those of others stay."""
    for number in range(3):
        add(store, number, partition=number)
    add(store, 9, name="audit")
    assert mark(store, 1) == 1
    assert [due(store, partition) for partition in range(3)] == [[], [1], []]
    assert claim(store, "one", [0, 1, 2]).letters == {1}
    assert call(store, store.dead_letters.retry) == 2
    assert call(store, store.dead_letters.partitions_due) == {0, 1, 2}
    (other,) = letters(store, name="audit")
    assert other.state == "failed"
    assert call(store, store.dead_letters.retry, [other.id]) == 0
    assert call(store, store.dead_letters.discard, [other.id]) == 0
    with pytest.raises(ConfigurationError):
        call(store, store.dead_letters.get, other.id)
    assert [one.event.data for one in letters(store, partition=2)] == [2]
    assert [one.event.data for one in letters(store, limit=2)] == [0, 1]


def test_letters_of_a_key_are_many(store):
    """A claim is quick while thousands of letters are held back for one, and so is the next try."""
    add(store, 0, key="k")
    add(store, 1, key="k", held=True)
    table = store.tables.dead_letters
    columns = [column for column in table.c if column.name != "id"]
    held = select(*columns).where(table.c.state == "held")
    for _ in range(14):
        execute(store.engine, table.insert().from_select(columns, held))
    began = time.monotonic()
    assert claim(store, "one", [0]).letters == set()
    mark(store, 0)
    assert claim(store, "one", [0]).letters == {0}
    assert due(store, limit=1) == [0]
    assert time.monotonic() - began < 8


def test_letter_held_back_while_another_is_discarded_is_due(postgresql):
    """What is held back for a letter that goes at this moment does not wait for ever."""
    store = at(new_store(postgresql), "REPEATABLE READ")
    add(store, 1, key="k")
    with store.engine.connect() as page, store.engine.connect() as operator:
        assert store.dead_letters.blocked(page, NAME, ["k"]) == {"k"}
        store.dead_letters.discard(operator, NAME)
        add_held = store.dead_letters.add
        add_held(page, NAME, 0, Event.of(2), key="k", error=None, tries=0)
        committed = beside(page.commit)
        operator.commit()
        assert outcome(committed) is None
    assert due(store) == [2]


class Mailbox(RuleBasedStateMachine):
    """Letters of two keys and of none, against a list that holds the same."""

    def __init__(self, store):
        super().__init__()
        self.store = store
        self.number = 0
        self.model = []
        execute(store.engine, delete(store.tables.dead_letters))

    @rule(key=st.sampled_from(["a", "b", None]))
    def fails(self, key):
        """An event fails, or is held back for those of its key."""
        self.number += 1
        blocked = key is not None and call(self.store, self.store.dead_letters.blocked, [key])
        assert bool(blocked) == (key is not None and any(one[1] == key for one in self.model))
        add(self.store, self.number, key=key, held=bool(blocked))
        self.model.append([self.number, key, "held" if blocked else "failed"])

    @rule()
    def all_are_marked(self):
        """An operator marks all letters."""
        call(self.store, self.store.dead_letters.retry)
        for one in self.model:
            one[2] = "retry" if one[2] == "failed" else one[2]

    @rule(data=st.data())
    def one_is_marked_or_discarded(self, data):
        """An operator marks or discards a letter."""
        if not self.model:
            return
        one = data.draw(st.sampled_from(self.model))
        if data.draw(st.booleans()):
            assert mark(self.store, one[0]) == (one[2] == "failed")
            one[2] = "retry" if one[2] == "failed" else one[2]
        else:
            ids = [letter.id for letter in letters(self.store) if letter.event.data == one[0]]
            assert call(self.store, self.store.dead_letters.discard, ids) == 1
            self.model.remove(one)

    @rule(works=st.booleans())
    def what_is_due_is_applied(self, works):
        """The process that reads the partition applies what is due."""
        for letter in call(self.store, self.store.dead_letters.due, 0, limit=2):
            one = next(one for one in self.model if one[0] == letter.event.data)
            with self.store.engine.begin() as connection:
                if works:
                    self.store.dead_letters.settle(connection, letter)
                    self.model.remove(one)
                else:
                    self.store.dead_letters.failed_again(connection, letter, failure(), 2)
                    one[2] = "failed"

    @invariant()
    def what_is_due_is_first_of_its_key(self):
        """The letters are those of the list; due are those that wait no longer and are first."""
        found = [[one.event.data, one.key, one.state] for one in letters(self.store)]
        assert found == self.model
        firsts = {one[1]: one for one in reversed(self.model)}
        wanted = [
            number
            for number, key, state in self.model
            if state != "failed" and (key is None or firsts[key][0] == number)
        ]
        assert due(self.store) == wanted
        partitions = call(self.store, self.store.dead_letters.partitions_due)
        assert partitions == ({0} if wanted else set())


def test_letters_of_any_history(store):
    """Whatever fails, is marked and discarded, each key's events are applied in their order."""
    examples = settings(max_examples=15, stateful_step_count=12)
    run_state_machine_as_test(lambda: Mailbox(store), settings=examples)
