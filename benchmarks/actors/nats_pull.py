"""Consume a stream of NATS JetStream by pulling; decode and acknowledge."""

import asyncio
import uuid
from typing import Any

import msgspec
import nats
from nats.errors import TimeoutError as NothingLeft
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.actors.speaking import perform, task


async def consume(wanted: dict[str, Any]) -> int:
    """Pull up to a number of events; acknowledge each batch by its last message."""
    server = await nats.connect(f"nats://127.0.0.1:{wanted['port']}")
    decode, events = msgspec.json.Decoder().decode, 0
    stream = server.jetstream()
    together = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=10 * wanted["limit"])
    pulling = await stream.pull_subscribe(wanted["stream"], uuid.uuid4().hex, config=together)
    while events < wanted["events"]:
        try:
            messages = await pulling.fetch(wanted["limit"], timeout=5)
        except NothingLeft:
            break
        for message in messages:
            events += bool(decode(message.data)["id"])
        await messages[-1].ack()
    await server.close()
    return events


def main() -> None:
    """Consume as often as it is told to."""
    wanted = task()
    perform(lambda _: {"events": asyncio.run(consume(wanted))})


if __name__ == "__main__":
    main()
