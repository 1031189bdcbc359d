"""Consume a stream of Redis as a member of a group, with hiredis; decode and acknowledge."""

import msgspec
import redis

from benchmarks.actors.speaking import perform, task

GROUP = "benchmark"


def main() -> None:
    """Consume all of it, as often as it is told to."""
    wanted = task()
    server = redis.Redis(port=wanted["port"], protocol=2)
    decode = msgspec.json.Decoder().decode

    def work(_: object) -> dict[str, int]:
        stream, events = wanted["stream"], 0
        server.xgroup_create(stream, GROUP, id="0")
        while True:
            found = server.xreadgroup(GROUP, "one", {stream: ">"}, count=wanted["limit"])
            if not found:
                server.xgroup_destroy(stream, GROUP)
                return {"events": events}
            ((_name, messages),) = found
            for _number, fields in messages:
                events += bool(decode(fields[b"data"])["id"])
            server.xack(stream, GROUP, *(number for number, _fields in messages))

    perform(work)


if __name__ == "__main__":
    main()
