"""`zeroeventhub dead-letters`: an operator lists, shows, retries and discards them."""

import json

from harness.command_line import invoke, output_of
from harness.stores import NAME, call, new_store

from zeroeventhub import Event
from zeroeventhub.consumer.observer import note_place

PLACE = "event 1 of 3 after cursor '_first'"
EVIL = "\x1b[2J\r\x9b\u202e"


def run(*arguments, answer=None):
    """Run a command of the group."""
    return invoke("dead-letters", *arguments, answer=answer)


def add(store, event, *, key=None, held=False, text="no", at=""):
    """Set an event aside; return its number."""
    error = None if held else ValueError(text)
    if error and at:
        note_place(error, at)
    method = store.dead_letters.add
    call(store, method, 0, event, key=key, error=error, tries=0 if held else 3)
    return call(store, store.dead_letters.letters)[-1].id


def states(store):
    """Return the states of the letters."""
    return [letter.state for letter in call(store, store.dead_letters.letters)]


def test_letters_are_listed_shown_retried_and_forgotten(any_engine, of_billing):
    """An operator lists letters, shows one, and retries or discards it."""
    store = new_store(any_engine)
    first = add(store, Event.of({"n": 1}), key="k", text="no such customer\nor other", at=PLACE)
    held = add(store, Event.of({"n": 2}), key="k", held=True)
    last = add(store, Event(b'{"n":1e400}', {"h": "1"}))
    listed = output_of("dead-letters", "list", *of_billing)
    one, two, _ = (line.split("  ") for line in listed.splitlines())
    assert one[:-2] == [str(first), "partition 0", "key k", "failed after 3 tries"]
    assert one[-1] == f"ValueError: no such customer, at {PLACE}"
    assert two[:-1] == [str(held), "partition 0", "key k", "held back"]
    assert run("list", *of_billing, "--partition", 1).stdout == ""
    shown = run("show", *of_billing, first).stdout
    assert '\n{"n":1}\nValueError: no such customer\nor other\n' in shown
    document = json.loads(run("show", *of_billing, last, "--json").stdout)
    assert (document["event"], document["headers"]) == ('{"n":1e400}', {"h": "1"})
    refused = run("retry", *of_billing, held)
    assert (refused.exit_code, "held back" in refused.stderr) == (2, True)
    missing = run("retry", *of_billing, first, 99)
    assert (missing.exit_code, "no dead letter 99" in missing.stderr) == (2, True)
    assert states(store) == ["failed", "held", "failed"]
    marked = run("retry", *of_billing, first)
    assert marked.stdout.startswith("Dead letters marked: 1.")
    assert states(store) == ["retry", "held", "failed"]
    assert run("discard", *of_billing, last, answer="n\n").exit_code == 1
    assert len(states(store)) == 3
    assert run("discard", *of_billing, last, "--yes").stdout == "Dead letters discarded: 1\n"
    assert json.loads(run("retry", *of_billing, "--json").stdout) == {"marked": 0}
    asked = run("discard", *of_billing, "--json", answer="y\n")
    assert json.loads(asked.stdout) == {"discarded": 2}
    assert "billing will never apply the events of all dead letters" in asked.stderr
    assert states(store) == []


def test_letters_cannot_talk_to_the_terminal(sqlite, sqlite_url):
    """Events, keys and errors are shown without control characters."""
    store = new_store(sqlite)
    event = Event(f'"{EVIL[5:]}"'.encode(), {f"h{EVIL}": EVIL})
    number = add(store, event, key=EVIL, text=EVIL + "x" * 1000)
    of_billing = ("--store", sqlite_url, "--consumer", NAME)
    listed = run("list", *of_billing).stdout
    assert listed.removesuffix("\n").isprintable()
    assert len(listed) < 1000
    shown = run("show", *of_billing, number).stdout
    assert all(line.isprintable() for line in shown.split("\n")), shown
    document = json.loads(run("show", *of_billing, number, "--json").stdout)
    assert (document["event"], document["key"]) == (event.raw.decode(), EVIL)
