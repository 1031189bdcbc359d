"""Mistakes in the clients, the decoders, and what keeps secrets out of their words."""

from harness.planted import Planted

_DECODER = ("tests/unit/wire/test_ndjson.py",)
_CODING = ("tests/integration/wire/test_compression.py",)
_EXCHANGE = ("tests/integration/client/test_exchange.py",)
_REDACTION = ("tests/integration/client/test_redaction.py",)
_ARROW = ("tests/integration/wire/test_arrow.py",)

PLANTED = (
    Planted(
        "events after the last checkpoint are not of the page",
        "wire/ndjson.py",
        "            PageEvents(found.lines, text,",
        "            PageEvents(found.lines + found.tail, text,",
        _DECODER,
    ),
    Planted(
        "a page without a checkpoint is none",
        "wire/ndjson.py",
        "            raise found.error or CutPage(",
        "            checkpoint = _Line(cursor='x')\n"
        "        if not found.tail:\n            raise CutPage(",
        _DECODER,
    ),
    Planted(
        "a checkpoint counts without its newline if the page ends there",
        "wire/ndjson.py",
        '            body += b"\\n"\n',
        "            pass\n",
        _DECODER,
    ),
    Planted(
        "the bytes of a page are counted over all chunks",
        "wire/ndjson.py",
        "        self._room -= len(chunk)\n",
        "        self._room = self._bounds.page_bytes - len(chunk)\n",
        _DECODER,
    ),
    Planted(
        "the events of a page are counted over all checkpoints",
        "wire/ndjson.py",
        "            yield parsed\n",
        "            yield parsed\n            events *= not parsed.cursor\n",
        _DECODER,
    ),
    Planted(
        "lines of a page that are no events are bounded",
        "wire/ndjson.py",
        "        return 2 * self.page_events + _MORE",
        "        return math.inf",
        (*_CODING, "-k", "no_events"),
    ),
    Planted(
        "a piece of gzip that is full may have more after it",
        "wire/compression.py",
        "        while chunk or len(piece) == PIECE:",
        "        while chunk:",
        _CODING,
    ),
    Planted(
        "a document is whole only with the last byte of its coding",
        "wire/compression.py",
        "        return self._member.eof",
        "        return self._unpacked > 0",
        _CODING,
    ),
    Planted(
        "an answer that is no page is bounded over all of its pieces",
        "client/exchange.py",
        "        if len(self._document) > bound:",
        "        if len(piece) > bound:",
        _EXCHANGE,
    ),
    Planted(
        "a refusal that is cut is not believed",
        "client/requests.py",
        "        if not request.is_in_page:\n            raise Unreachable",
        "        if request.is_refusal:\n            return\n"
        "        if not request.is_in_page:\n            raise Unreachable",
        _EXCHANGE,
    ),
    Planted(
        "bytes that have come earn time for those to come",
        "client/exchange.py",
        "        self._received += count",
        "        self._received = count",
        _EXCHANGE,
    ),
    Planted(
        "an operation that took longer than its caller's timeout came too late",
        "client/exchange.py",
        "        if asked is not None and monotonic() - asked > self._timeout:",
        "        if asked is not None and monotonic() - asked > self._timeout + 1:",
        _EXCHANGE,
    ),
    Planted(
        "waiting for a connection takes a third of the deadline at most",
        "client/exchange.py",
        '"connect": third if timeout.connect is None else min(timeout.connect, third),',
        '"connect": timeout.connect,',
        _EXCHANGE,
    ),
    Planted(
        "the password of an address is a secret by itself",
        "client/redaction.py",
        "self._url.password or self._url.username, self._url.userinfo.decode()",
        "self._url.userinfo.decode()",
        _REDACTION,
    ),
    Planted(
        "what httpx logs is rewritten only while a feed is asked",
        "client/client.py",
        "            requested.reset(former)\n        return request\n\n\nclass AsyncClient",
        "            pass\n        return request\n\n\nclass AsyncClient",
        _REDACTION,
    ),
    Planted(
        "the events of Arrow's batches are counted over all of them",
        "wire/arrow.py",
        "            self._events += len(found)",
        "            self._events = len(found)",
        _ARROW,
    ),
    Planted(
        "the rows of Arrow's batches are counted over all of them",
        "wire/arrow.py",
        "        self._rows += batch",
        "        self._rows = batch",
        (*_ARROW, "-k", "rows_of_a_page"),
    ),
    Planted(
        "long metadata are looked at once they are there",
        "wire/arrow.py",
        "                    self._needed = end  # the",
        "                    self._needed = start  # the",
        (*_ARROW, "-k", "long_metadata"),
    ),
)
