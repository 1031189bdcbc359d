"""Deliver events as messages of a Kafka topic."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from zeroeventhub.errors import ConfigurationError, require
from zeroeventhub.protocol import Event
from zeroeventhub.relay.target import Choose, EventRefused, Target, TargetUnavailable
from zeroeventhub.wire.cloud_event import attributes, event_id, event_key

require("confluent_kafka", extra="kafka", user="A relay to Kafka")
from confluent_kafka import KafkaError, KafkaException, Producer  # noqa: E402 - named if missing

_log = logging.getLogger("zeroeventhub.relay")

PATIENCE = 30.0
"""Seconds that the brokers have to take a page."""

_CONNECTING = 10.0
"""Seconds that the brokers have to describe the topic at the start."""

_SERVING = 0.01
"""Seconds to wait for reports: another thread may serve those of this one meanwhile."""

_BY_KEY = -1
"""The partition of a message whose key chooses it."""

_REFUSALS = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
}
"""The errors that are the fault of a message."""


class KafkaTarget(Target):
    """Deliver events as messages, in the structured mode of CloudEvents' Kafka binding.

    The value is the event's JSON, byte for byte. A CloudEvent's attributes are headers `ce_…` as
    well; the id of any other event is the header `id`.

    Example:
        with KafkaTarget("kafka://127.0.0.1:9092/orders") as target:
            Consumer(client, store, "kafka").run(target.apply)

    Args:
        url: the brokers and the topic, such as kafka://one:9092,two:9092/orders.
        key: returns the key of a message; by default a CloudEvent's partitionkey or subject.
        identity: returns the id of an event; by default a CloudEvent's id.
        keep_partitions: write to the partition of the feed's number, instead of the one that the
            message's key chooses, as Kafka's Java clients do.
        settings: librdkafka's own settings, such as those of TLS and SASL.

    Raises:
        ConfigurationError: the URL, a setting or the topic cannot work.
        TargetUnavailable: no broker answers.
    """

    def __init__(
        self,
        url: str,
        *,
        key: Choose = event_key,
        identity: Choose = event_id,
        keep_partitions: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        parts = urlsplit(url)
        self._topic = parts.path.removeprefix("/")
        if parts.scheme != "kafka" or not parts.netloc or "@" in parts.netloc or not self._topic:
            raise ConfigurationError(
                "A topic is written as kafka://host:port/topic; credentials are settings."
            )
        self._key = key
        self._identity = identity
        self._keeps = keep_partitions
        self._settings: dict[str, Any] = {
            "bootstrap.servers": parts.netloc,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",  # that of the Java clients
            **(settings or {}),
            # Messages that time out one by one would leave gaps before those that are sent later.
            "message.timeout.ms": 0,
            "logger": _log,
        }
        self._lock = threading.Lock()
        self._producer = self._make_producer()
        try:
            found = self._producer.list_topics(self._topic, timeout=_CONNECTING).topics
        except KafkaException as error:
            raise TargetUnavailable(f"Kafka did not answer: {error.args[0].str()}.") from error
        if problem := found[self._topic].error:
            raise ConfigurationError(f"The topic {self._topic!r} cannot be used: {problem.str()}")

    def _make_producer(self) -> Producer:
        try:
            return Producer(self._settings)
        except KafkaException as error:
            raise ConfigurationError(f"Kafka's settings: {error.args[0].str()}") from error

    def deliver(
        self, partition: int, events: Sequence[Event], delivered: Callable[[Event], object]
    ) -> None:
        """Deliver events; see `Target.deliver`."""
        queued = _Queued(self._producer, delivered, self._identity)
        problem: Exception | None = None
        try:
            try:
                for event in events:
                    while not self._queue(queued, partition, event):
                        queued.serve()
            except TargetUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - raised when those before it are taken
                problem = error
            queued.wait()
        except TargetUnavailable:
            self._replace(queued.producer)
            raise
        if problem is not None:
            raise problem

    def _queue(self, queued: "_Queued", partition: int, event: Event) -> bool:
        """Queue a message; return False if the queue is full."""
        key, headers = self._key(event), self._headers(event)
        with self._lock:
            if queued.producer is not self._producer:
                raise TargetUnavailable("Kafka did not take another page.")
            try:
                queued.producer.produce(
                    self._topic,
                    event.raw,
                    key=key,
                    headers=headers,
                    partition=partition if self._keeps else _BY_KEY,
                    on_delivery=partial(queued.report, event),
                )
            except BufferError:
                return False
            except KafkaException as error:
                raise _error_of(error.args[0], self._identity(event)) from error
        queued.count += 1
        return True

    def _headers(self, event: Event) -> list[tuple[str, str | bytes | None]]:
        """Return the headers of a message (CloudEvents, Kafka Protocol Binding 1.0)."""
        found = attributes(event)
        if not found:
            one = self._identity(event)
            kind: tuple[str, str | bytes | None] = ("content-type", "application/json")
            return [kind, ("id", one)] if one else [kind]  # an empty one is none
        return [
            ("content-type", "application/cloudevents+json; charset=UTF-8"),
            *(
                (f"ce_{name}", value if isinstance(value, str) else str(value).lower())
                for name, value in found.items()
                if isinstance(value, str | int) and name not in {"data", "data_base64"}
            ),
        ]

    def _replace(self, failed: Producer) -> None:
        """Give up what a producer has not sent: it must not come after what is sent anew."""
        with self._lock:
            if self._producer is failed:
                self._producer = self._make_producer()
        failed.purge()
        failed.poll(0)


class _Queued:
    """The messages of a page that a producer has in its queue."""

    def __init__(
        self, producer: Producer, delivered: Callable[[Event], object], identity: Choose
    ) -> None:
        self.producer = producer
        self.count = 0  # of them
        self._delivered = delivered
        self._identity = identity
        self._reports: list[Exception | None] = []
        self._deadline = time.monotonic() + PATIENCE

    def report(self, event: Event, error: KafkaError | None, _: object) -> None:
        """Take the report about a message, in any thread."""
        if error is None:
            self._delivered(event)
        problem = None if error is None else _error_of(error, self._identity(event))
        self._reports.append(problem)

    def serve(self) -> None:
        """Wait for reports for a short time."""
        if time.monotonic() > self._deadline:
            raise TargetUnavailable("Kafka did not take a page in time.")
        self.producer.poll(_SERVING)

    def wait(self) -> None:
        """Wait for all reports, and raise the first error among them."""
        while len(self._reports) < self.count:
            self.serve()
        for report in self._reports:
            if report is not None:
                raise report


def _error_of(error: KafkaError, identity: str | None) -> TargetUnavailable | EventRefused:
    if error.code() in _REFUSALS:
        name = "an event" if identity is None else f"event {identity!r}"
        return EventRefused(f"Kafka refused {name}: {error.str()}.")
    return TargetUnavailable(f"Kafka did not take a page: {error.str()}.")
