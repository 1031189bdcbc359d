"""Write the paths of the extensions into openapi.yaml, from the rows of the library.

    python spec/openapi.py

A row says everything that a program needs; the sentences and the example for people are here.
"""

from pathlib import Path
from typing import NamedTuple

from zeroeventhub.extensions import EXTENSIONS, PARTITION, REQUIRED, Extension, Parameter
from zeroeventhub.protocol import FIRST, LAST

DOCUMENT = Path(__file__).with_name("openapi.yaml")
BEGIN, END = "  # The paths of extensions are written by openapi.py.\n\n", "  /feed/http-feed:\n"

PATH = """\
  /feed/{extension.path}:
    summary: {text.title}; extension {extension.name}
{shared}"""

OPERATION = """\
    {method}:
      operationId: {operation}
      tags: [extensions]
      summary: {text.summary}
      description: SPEC.md, section {extension.section}. {missing} {extension.name}.
{own}{body}      responses:
        "{status}":
          description: {text.answer}
          headers:
            Cache-Control: {{$ref: "#/components/headers/NoStore"}}
            Vary: {{$ref: "#/components/headers/Vary"}}
          content:
            application/json:
              schema:
                $ref: schemas/{text.schema}.json
              example: {text.example}
{refusals}
"""

BODY = """\
      requestBody:
        required: true
        content:
          application/x-ndjson:
            schema: {type: array, minItems: 1, items: {$ref: schemas/new-event-line.json}}
            example: [{id: e1, type: order.paid, data: {order: 17}, key: "17"}]
          application/cloudevents-batch+json:
            schema: {type: array, minItems: 1, items: {$ref: schemas/new-cloud-event.json}}
            example: [{specversion: "1.0", id: e1, source: /shop, type: order.paid, subject: "17"}]
"""

HEAD = """\
    head:
      operationId: {operation}Head
      tags: [extensions]
      summary: What the request would answer, without its body
{own}      responses: *head-feed
"""

CURSOR = "2-1042-9f3c-0c1d2e3f4a"


class Text(NamedTuple):
    """What a row does not say: sentences, the schema of the answer, and an example of it."""

    title: str
    summary: str
    answer: str
    schema: str
    example: str


TEXTS = {
    "cursor-of-time": Text(
        "The cursor of a moment",
        "Find the cursor before all events of a moment or later",
        "The cursor.",
        "cursor-answer",
        f"{{cursor: {CURSOR}}}",
    ),
    "splits": Text(
        "Ranges of a partition",
        "Find the cursors that divide a partition into ranges of about equal size",
        "The cursors, in order.",
        "splits-answer",
        f'{{cursors: ["1-0", 2-500-9f3c-77aa01b2c3, {CURSOR}]}}',
    ),
    "lag": Text(
        "How many events follow a cursor",
        "Count the settled events after a cursor, and return the age of the first of them",
        "How far a reader with this cursor is behind.",
        "lag-answer",
        "{events: 1042, seconds: 17.5}",
    ),
    "cursor-of-count": Text(
        "The cursor a number of events after another one",
        "Find the cursor after a number of the settled events that follow another one",
        "The cursor, and how many events lie before it.",
        "counted-cursor-answer",
        f"{{cursor: {CURSOR}, events: 500}}",
    ),
    "segments": Text(
        "Files of old events",
        "Find the files that hold the events after a cursor",
        "The files, and the cursor after their last event.",
        "segments-answer",
        "{segments: [{url: https://cdn.example/orders/segments/0-1042.parquet, size: 31415, "
        f"after: 0, upTo: 1042, cursor: {CURSOR}}}], cursor: {CURSOR}}}",
    ),
    "key-history": Text(
        "The events of one key",
        "Read the events of one key in the order of their versions",
        "The events; an empty list if there are none.",
        "key-history-answer",
        "{events: [{version: 4, data: {order: 17, paid: 12.5}}], more: true}",
    ),
    "schemas": Text(
        "What the data of events is",
        "Read the schemas of the types of events that the reader may see",
        "The schemas, by the type of events.",
        "schemas-answer",
        "{schemas: {order.placed: {type: object, properties: {order: {type: integer}}}}, "
        "envelope: cloudevents}",
    ),
    "progress": Text(
        "How far a consumer has committed",
        "Register how far a consumer has committed, so that trimming waits for it",
        "The registered cursor.",
        "cursor-answer",
        f"{{cursor: {CURSOR}}}",
    ),
    "forget-progress": Text(
        "What a consumer has registered",
        "Withdraw what a consumer has registered, so that trimming no longer waits for it",
        "In how many partitions the consumer had registered.",
        "forgotten-answer",
        "{partitions: 2}",
    ),
    "append": Text(
        "Events to append",
        "Append a batch of events, all together or not at all",
        "Where the events are; they are committed.",
        "append-answer",
        "{events: [{partition: 0, id: e1, version: 3}, {partition: 2, id: e2}]}",
    ),
    "producer-sequence": Text(
        "The last batch of a producer",
        "Read the sequence of a producer's last batch",
        "The sequence; 0 for a producer without batches.",
        "producer-sequence-answer",
        "{sequence: 41}",
    ),
}

CURSORS = {
    frozenset(): "cursor",
    frozenset({LAST}): "laterCursor",
    frozenset({FIRST, LAST}): "committedCursor",
}
"""The component of a required parameter of the kind "cursor", by the cursors that it refuses."""

REFUSALS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "TokenChanged",
    410: "Gone",
    429: "TooManyRequests",
    500: "Failed",
    503: "Unavailable",
}

APPEND_REFUSALS = {
    409: "Refused",
    413: "TooLarge",
    415: "UnsupportedMediaType",
    422: "InvalidEvent",
    507: "StorageFull",
}
"""What else an append is refused with."""


def camel_case(name: str) -> str:
    """Return a name with capitals in place of its hyphens."""
    first, *more = name.split("-")
    return first + "".join(map(str.capitalize, more))


def component(parameter: Parameter) -> str:
    """Return the name of the component that describes a parameter."""
    if parameter.name == "cursor":
        return "splitsCursor" if parameter.default == FIRST else CURSORS[parameter.refused]
    if parameter.name == "producer":
        return "knownProducer" if parameter.default is REQUIRED else "producer"
    return camel_case(parameter.name)


def parameters_of(extension: Extension, indent: str) -> str:
    """Return the parameters of an extension, indented."""
    names = ["token"] if PARTITION in extension.parameters else []
    names += map(component, extension.parameters)
    if not names:
        return ""
    lines = ["parameters:", *(f'  - $ref: "#/components/parameters/{name}"' for name in names)]
    return "".join(f"{indent}{line}\n" for line in lines)


def path_of(extensions: list[Extension]) -> str:
    """Return a path: what is read has its parameters for GET and HEAD, a change has its own."""
    first = extensions[0]
    shared = parameters_of(first, " " * 4) if first.verb == "GET" else ""
    path = PATH.format(extension=first, text=TEXTS[first.name], shared=shared)
    return path + "".join(operation_of(one, shares=bool(shared)) for one in extensions)


def operation_of(extension: Extension, *, shares: bool) -> str:
    """Return what an extension adds to its path, whose operations may share their parameters."""
    expected = {
        "TokenChanged": PARTITION in extension.parameters,
        "Gone": any(one.kind == "cursor" for one in extension.parameters),
    }
    operation, is_append = camel_case(extension.name), extension.verb == "POST"
    refusals = {status: name for status, name in REFUSALS.items() if expected.get(name, True)} | (
        APPEND_REFUSALS if is_append else {}
    )
    text = OPERATION.format(
        extension=extension,
        missing="404 where discovery does not name",
        text=TEXTS[extension.name],
        method=extension.verb.lower(),
        operation=operation,
        own="" if shares else parameters_of(extension, " " * 6),
        body=BODY if is_append else "",
        status=201 if is_append else 200,
        refusals="\n".join(
            f'        "{status}": {{$ref: "#/components/responses/{name}"}}'
            for status, name in sorted(refusals.items())
        ),
    )
    if extension.verb != "GET":
        return text
    own = "" if shares else parameters_of(extension, " " * 6)
    return text + HEAD.format(operation=operation, own=own)


def written(document: str) -> str:
    """Return a document with the paths of the extensions that there are."""
    before, _, rest = document.partition(BEGIN)
    after = rest[rest.index(END) :]
    paths: dict[str, list[Extension]] = {}
    for extension in EXTENSIONS.values():
        if extension.path:
            paths.setdefault(extension.path, []).append(extension)
    return before + BEGIN + "\n".join([*map(path_of, paths.values()), after])


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text()))
