"""Deliveries to a broker that speaks Kafka's protocol."""

import json
import signal
import threading
from collections import Counter
from uuid import uuid4

import pytest
from harness.kafka import headers
from harness.stores import call

from zeroeventhub import Event, Failures
from zeroeventhub.errors import ConfigurationError, Halted
from zeroeventhub.relay import kafka
from zeroeventhub.relay.kafka import KafkaTarget
from zeroeventhub.relay.target import TargetUnavailable


@pytest.fixture
def topic(broker):
    """The name of a new topic with three partitions."""
    name = f"orders-{uuid4().hex}"
    broker.create(name)
    return name


@pytest.fixture
def target(broker, topic):
    """A function that makes a target that writes to the topic."""
    return lambda **options: KafkaTarget(f"kafka://{broker.address}/{topic}", **options)


def number(message):
    """The number of the order of a message."""
    return json.loads(message.value())["data"]["n"]


def test_event_is_a_message(relay, target, broker, topic):
    """A message has the event as its value, its key, and its attributes as headers; all once."""
    relay(target())
    relay(target())
    messages = broker.read(topic)
    assert sorted(map(number, messages)) == [*range(100)]
    one = next(message for message in messages if number(message) == 8)
    event = json.loads(one.value())
    assert one.key() == b"c1"
    assert headers(one) == {
        "content-type": "application/cloudevents+json; charset=UTF-8",
        "ce_specversion": "1.0",
        "ce_id": "9",
        "ce_source": event["source"],
        "ce_type": "placed",
        "ce_datacontenttype": "application/json",
        "ce_partitionkey": "c1",
    }


def test_messages_of_a_key_are_in_one_partition_in_order(relay, target, broker, topic):
    """A key chooses its partition, where its messages are in the order of the feed's partition."""
    relay(target())
    messages = broker.read(topic)
    places = {(message.key(), message.partition()) for message in messages}
    assert len(places) == 7
    for key, _ in places:
        for part in range(2):
            of_key = [number(one) for one in messages if one.key() == key]
            of_part = [n for n in of_key if n % 2 == part]
            assert of_part == sorted(of_part)


def test_partitions_can_be_kept(relay, target, broker, topic):
    """With keep_partitions, a message is in the partition of the feed's number, all in order."""
    relay(target(keep_partitions=True))
    messages = broker.read(topic)
    assert [(one.partition(), number(one)) for one in messages] == [
        (n % 2, n) for n in (*range(0, 100, 2), *range(1, 100, 2))
    ]


def test_other_events_have_the_id_that_they_are_given(target, broker, topic):
    """An event that is no CloudEvent has its key and id by functions, and no headers of one."""
    chosen = {"key": lambda event: event.data["who"], "identity": lambda event: event.data.get("n")}
    one = target(**chosen)
    events = [{"who": "ada", "n": "7"}, {"who": None}, {"who": "bob", "n": ""}]
    one.deliver(0, [*map(Event.of, events)], lambda _: None)
    found = {message.value(): message for message in broker.read(topic)}
    with_id = found[b'{"who":"ada","n":"7"}']
    assert with_id.key() == b"ada"
    assert headers(with_id) == {"content-type": "application/json", "id": "7"}
    for value in (b'{"who":null}', b'{"who":"bob","n":""}'):
        assert headers(found[value]) == {"content-type": "application/json"}


@pytest.mark.slow
def test_frozen_broker_is_waited_for(relay, target, broker, topic, monkeypatch):
    """While the broker does not answer, pages are tried again; every event comes, in order."""
    monkeypatch.setattr(kafka, "PATIENCE", 0.5)
    one = target(keep_partitions=True)
    broker.process.send_signal(signal.SIGSTOP)
    thaw = threading.Timer(1, broker.process.send_signal, [signal.SIGCONT])
    thaw.start()
    try:
        relay(one, attempts=None)
    finally:
        thaw.join()
    numbers = [number(message) for message in broker.read(topic)]
    assert set(numbers) == {*range(100)}
    for part in range(2):
        first = dict.fromkeys(n for n in numbers if n % 2 == part)  # in the order of first arrival
        assert [*first] == [*range(part, 100, 2)]


@pytest.mark.slow
def test_broker_that_stays_away_ends_the_run(relay, target, broker, topic, monkeypatch):
    """After the attempts that a consumer has, its run ends, and another one delivers all."""
    monkeypatch.setattr(kafka, "PATIENCE", 0.1)
    one = target()
    broker.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(TargetUnavailable, match="in time"):
            relay(one, attempts=2)
    finally:
        broker.process.send_signal(signal.SIGCONT)
    monkeypatch.undo()
    relay(target())
    assert {number(message) for message in broker.read(topic)} == {*range(100)}


def test_too_large_event_halts_or_is_set_aside(relay, target, broker, topic, store):
    """A message that the settings refuse halts its partition, or is a dead letter; others come."""
    settings = {"message.max.bytes": "1000"}

    def key(event):
        return "x" * 2000 if event.data["data"]["n"] == 50 else None

    with pytest.raises(Halted) as halted:
        relay(target(settings=settings, key=key))
    assert "Message size too large" in str(halted.value.__cause__)
    relay(target(settings=settings, key=key), failures=Failures(2, "set-aside"))
    counts = Counter(number(message) for message in broker.read(topic))
    assert set(counts) == {*range(100)} - {50}
    # Those before it came again in the second run, as the first one had not committed their page.
    assert all(count <= 2 for count in counts.values())
    assert call(store, store.dead_letters.count, name="relay") == {0: 1}


def test_key_that_raises_repeats_no_other_event(relay, target, broker, topic):
    """Events before one whose key cannot be found are on their way, and do not come again."""

    def key(event):
        return str(1 // (40 - event.data["data"]["n"]))

    relay(target(key=key), failures=Failures(3, "set-aside"))
    counts = Counter(number(message) for message in broker.read(topic))
    assert counts == Counter(n for n in range(100) if n != 40)


@pytest.mark.parametrize(
    ("url", "settings", "words"),
    [
        ("kafka://127.0.0.1:1", {}, "kafka://host:port/topic"),
        ("kafka:///orders", {}, "kafka://host:port/topic"),
        ("kafka://user:canary@127.0.0.1:1/orders", {}, "credentials are settings"),
        ("kafka://127.0.0.1:1/orders", {"no.such.thing": "canary"}, "no.such.thing"),
    ],
)
def test_target_that_cannot_work_is_refused(url, settings, words):
    """A URL or a setting that cannot work is refused at once."""
    with pytest.raises(ConfigurationError) as refused:
        KafkaTarget(url, settings=settings)
    assert words in str(refused.value)
    assert "canary" not in str(refused.value)


def test_broker_that_is_not_there_is_named(monkeypatch):
    """Without a broker, the target says so when it is made."""
    monkeypatch.setattr(kafka, "_CONNECTING", 0.2)
    with pytest.raises(TargetUnavailable, match="Kafka did not answer"):
        KafkaTarget("kafka://127.0.0.1:1/orders")
