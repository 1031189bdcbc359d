"""The relay as a user has it: the guide's commands, and processes that are killed."""

import json
import random
import re
import shlex
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from harness.command_line import PATIENCE, address_of, run, started
from harness.guides import block, guide
from harness.kafka import broker
from harness.readers import mounted
from harness.receiver import SECRET, Receiver
from harness.shop import fill, orders
from harness.stores import new_store
from harness.waiting import until
from harness.web import serving
from sqlalchemy import create_engine, text

from zeroeventhub import Client, Consumer, TableFeed

EXAMPLES = Path(__file__).parents[2] / "examples"
KILLS = 3
EVENTS = 300
PAGE = 10


def commands(mark):
    """The lines of a console in the guide: what is typed, and what is answered."""
    lines = block("relay.md", mark).splitlines()
    typed = [shlex.split(line[2:]) for line in lines if line.startswith("$ ")]
    return typed, [line for line in lines if not line.startswith("$ ")]


@pytest.fixture
def shop(empty_folder):
    """The address of the guide's feed of two orders, in an empty folder."""
    engine = create_engine("sqlite:///shop.db")
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE orders "
                "(id INTEGER PRIMARY KEY AUTOINCREMENT, customer TEXT, data TEXT)"
            )
        )
        for customer, amount in (("ada", 12), ("bob", 7.5)):
            data = json.dumps({"customer": customer, "amount": amount})
            row = {"customer": customer, "data": data}
            connection.execute(
                text("INSERT INTO orders (customer, data) VALUES (:customer, :data)"), row
            )
    engine.dispose()
    (words,), _ = commands("serve")
    with started(*("0" if word == "8000" else word for word in words[1:])) as process:
        announced = process.stdout.readline()
        yield re.fullmatch(r"Feed: (\S+)/orders\n", announced)[1]


def relayed(words, **places):
    """Run a relay of the guide with other addresses; return what it says."""
    result = run(*(replaced(word, places) for word in words[1:]))
    assert result.returncode == 0, result.stderr
    return result.stderr.splitlines()


def replaced(word, places):
    """Put the addresses of a test in the place of the guide's."""
    for port, address in places.items():
        word = word.replace(f"127.0.0.1:{port[1:]}", address.removeprefix("http://"))
    return word


def test_guide_delivers_to_a_topic(shop, tmp_path):
    """The guide's command writes both orders to a topic, and says so."""
    (words,), said = commands("kafka")
    with broker(tmp_path / "broker.log") as running:
        running.create("orders", partitions=1)
        assert relayed(words, _8000=shop, _9092=running.address) == said
        values = [json.loads(message.value()) for message in running.read("orders")]
    assert [value["data"]["customer"] for value in values] == ["ada", "bob"]


def test_guide_delivers_to_the_example(shop, tmp_path, monkeypatch):
    """The guide's command delivers to the example, which bills each order once, also if twice."""
    (export, _, words), said = commands("webhook")
    name, _, secret = export[1].partition("=")
    monkeypatch.setenv(name, secret)
    example = ("-m", "uvicorn", "--port", "0", "--app-dir", EXAMPLES, "webhook_receiver:app")
    with started(*example, program=[sys.executable]) as process:
        address = address_of(process)
        assert relayed(words, _8000=shop, _9000=address) == said
        again = [word.replace("relay.db", "other.db") for word in words]
        assert relayed(again, _8000=shop, _9000=address) == said
        assert httpx.post(f"{address}/hook", content=b"{}").status_code == 401
    engine = create_engine("sqlite:///billing.db")
    with engine.connect() as connection:
        query = text("SELECT customer, amount FROM invoices ORDER BY amount")
        assert [tuple(row) for row in connection.execute(query)] == [("bob", 7.5), ("ada", 12)]
    engine.dispose()


def test_target_in_code(shop, tmp_path):
    """The guide's code delivers both orders."""
    receiver, engine = Receiver(), create_engine(f"sqlite:///{tmp_path / 'relay.db'}")
    with serving(receiver.application) as url:
        given = {
            "Consumer": lambda *arguments, **options: Consumer(*arguments, follow=False, **options),
            "client": Client(f"{shop}/orders"),
            "store": new_store(engine),
            "secret": SECRET,
            "engine": engine,
        }
        with guide("relay.md", {"http://127.0.0.1:9000": url}, **given) as piece:
            piece("code")
    assert sorted(receiver.ids) == ["1", "2"]


@contextmanager
def topic(folder):
    """A topic; yields its URL, its options, and what reads the orders that have arrived."""
    with broker(folder / "broker.log") as running:
        url = running.create("orders")
        read = lambda: [json.loads(one.value()) for one in running.read("orders")]  # noqa: E731
        yield url, ("--keep-partitions",), read


@contextmanager
def hook(folder):
    """A webhook, in the same way."""
    receiver, secret = Receiver(seconds=0.002), folder / "secret"
    secret.write_text(SECRET)
    with serving(receiver.application) as url:
        read = lambda: [json.loads(body) for _, body in [*receiver.taken]]  # noqa: E731
        yield f"{url}/hook", ("--secret-file", secret, "--lanes", 3), read


@pytest.mark.slow
@pytest.mark.parametrize("target", [topic, pytest.param(hook, marks=pytest.mark.test_all)])
def test_killed_relay_misses_nothing(target, sqlite, any_database_url, tmp_path):
    """Killed at any moment and started again, the relay delivers every event.

    Each kill repeats no more than a page of each partition; the events of a key arrive in order.
    """
    columns = {"data": "data", "partition": "part", "key": "customer", "id": "id"}
    published = TableFeed(orders, partitions=2, cloudevents=True, **columns)
    dice = random.Random(7)
    with ExitStack() as stack:
        feed = stack.enter_context(mounted(published, fill(sqlite, EVENTS, partitions=2)))
        url, options, read = stack.enter_context(target(tmp_path))
        into = ("--store", any_database_url, "--consumer", "relay", "--page", PAGE, "--lease", 1)
        command = ("relay", feed, "--to", url, *into, *options, "--json")
        for _ in range(KILLS):
            before = len(read())
            with started(*command) as process:
                until(
                    lambda process=process, least=before: (
                        process.poll() is not None or len(read()) > least
                    ),
                    "something arrives",
                    PATIENCE,
                )
                time.sleep(dice.uniform(0, 0.15))
                process.kill()
        with started(*command) as one, started(*command) as other:
            for process in (one, other):
                _, errors = process.communicate(timeout=PATIENCE)
                assert process.returncode == 0, errors
        arrived = read()
    counts = Counter(event["id"] for event in arrived)
    assert set(counts) == {str(number) for number in range(1, EVENTS + 1)}
    assert counts.total() - EVENTS <= KILLS * 2 * PAGE
    for key in {(event["data"]["n"] % 2, event["partitionkey"]) for event in arrived}:
        numbers = [
            event["data"]["n"]
            for event in arrived
            if (event["data"]["n"] % 2, event["partitionkey"]) == key
        ]
        first = [*dict.fromkeys(numbers)]
        assert first == sorted(first)
