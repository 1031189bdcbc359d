"""What a feed publishes of the form of its events: schemas, and an AsyncAPI document."""

from typing import Any

import msgspec
from starlette.responses import Response

from zeroeventhub.errors import NotFound
from zeroeventhub.protocol import CLOUDEVENTS, EVERY_TYPE, EXTENSIONS, SCHEMAS, Schemas
from zeroeventhub.server.app import FeedApp
from zeroeventhub.server.request import FeedRequest, expect_extension, parameters
from zeroeventhub.server.responses import FRESH
from zeroeventhub.wire.documents import encode_answer
from zeroeventhub.wire.json_schema import DIALECT

SCHEMA_TYPE = "application/schema+json"
ASYNCAPI_TYPE = "application/vnd.aai.asyncapi+json;version=3.0.0"


async def answer_schemas(app: FeedApp, request: FeedRequest) -> Response:
    """Answer with the schemas of the types that the principal may see (SPEC 9.16)."""
    await _expect_schemas(app, request)
    body = encode_answer(EXTENSIONS[SCHEMAS], await _visible(app, request))
    return Response(body, media_type="application/json", headers=FRESH)


async def answer_schema(app: FeedApp, request: FeedRequest) -> Response:
    """Answer with the schema of one type: what a CloudEvent's `dataschema` can name."""
    await _expect_schemas(app, request)
    name = parameters(request, "type")["type"]
    schema = (await _visible(app, request)).types.get(name)
    if schema is None:
        raise NotFound("The feed publishes no schema of this type.")
    return _document(schema, SCHEMA_TYPE)


async def answer_asyncapi(app: FeedApp, request: FeedRequest) -> Response:
    """Answer with the feed's description in AsyncAPI 3."""
    await _expect_schemas(app, request)
    path = request.url.path.removesuffix("/asyncapi")
    return _document(_asyncapi(app.name, path, await _visible(app, request)), ASYNCAPI_TYPE)


async def _expect_schemas(app: FeedApp, request: FeedRequest) -> None:
    expect_extension(await app.runner.info(request), SCHEMAS)


async def _visible(app: FeedApp, request: FeedRequest) -> Schemas:
    found: Schemas = await app.runner.call("schemas")
    return found.seen_by(request.principal.narrowed(None))


def _document(document: Any, media_type: str) -> Response:
    body = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    return Response(body, media_type=media_type, headers=FRESH)


def _asyncapi(title: str, path: str, found: Schemas) -> dict[str, Any]:
    """Return the AsyncAPI document of a feed that is mounted at a path."""
    messages, definitions = {}, {}
    for number, (name, schema) in enumerate(found.types.items()):
        # References in a schema begin at its document's root, which is another one here.
        key = f"message{number}"
        definitions[key] = _rebase(schema, f"#/components/schemas/{key}")
        payload: dict[str, Any] = {"$ref": f"#/components/schemas/{key}"}
        if found.envelope == CLOUDEVENTS:
            kind = {"type": "string"} if name == EVERY_TYPE else {"const": name}
            payload = {
                "type": "object",
                "required": ["specversion", "id", "source", "type", "data"],
                "properties": {"type": kind, "data": payload},
            }
        messages[key] = {"name": name, "contentType": "application/json", "payload": payload}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": "1"},
        "defaultContentType": "application/json",
        "channels": {"events": {"address": f"{path}/events", "messages": messages}},
        "operations": {"publish": {"action": "send", "channel": {"$ref": "#/channels/events"}}},
        "components": {"schemas": definitions},
    }


def _rebase(schema: Any, root: str) -> Any:
    """Return a schema whose references begin at another root."""
    if isinstance(schema, list):
        return [_rebase(one, root) for one in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {}
    for name, value in schema.items():
        if name == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[name] = root + value[1:]
        elif (name, value) != ("$schema", DIALECT):
            moved[name] = _rebase(value, root)
    return moved
