"""Mistakes in the clients, the decoders, and what keeps secrets out of their words."""

from harness.planted import Planted

_DECODER = ("tests/unit/ndjson/test_page_decoder.py",)
_CODING = ("tests/integration/client/test_content_coding.py",)
_EXCHANGE = ("tests/integration/client/test_exchange.py",)
_DEADLINE = ("tests/integration/client/test_deadline.py",)
_REDACTION = ("tests/integration/client/test_redaction.py",)
_ARROW = ("tests/integration/arrow/test_arrow.py",)

PLANTED = (
    Planted(
        "events behind the last checkpoint are not of the page",
        "ndjson/page_decoder.py",
        "        return Page(\n            self._settled,",
        "        return Page(\n            self._settled + self._tail,",
        _DECODER,
    ),
    Planted(
        "a page without a checkpoint is none",
        "ndjson/page_decoder.py",
        "        if self._checkpoint is None or self._checkpoint.cursor is None:",
        "        if self._checkpoint is None and not self._settled + self._tail:",
        _DECODER,
    ),
    Planted(
        "a checkpoint counts without its newline if the page ends there",
        "ndjson/page_decoder.py",
        "        if _is_object(rest):\n            self._take([rest], checked=True)\n",
        "",
        _DECODER,
    ),
    Planted(
        "the bytes of a page are counted over all chunks",
        "ndjson/page_decoder.py",
        "        self._length += len(chunk)\n",
        "        self._length = max(self._length, len(chunk))\n",
        _DECODER,
    ),
    Planted(
        "the events of a page are counted over all chunks and checkpoints",
        "ndjson/page_decoder.py",
        "        return len(self._settled) + len(self._tail)",
        "        return len(self._tail)",
        _DECODER,
    ),
    Planted(
        "a piece of gzip that is full may have more behind it",
        "_http/content_coding.py",
        "        while chunk or len(piece) == PIECE:",
        "        while chunk:",
        _CODING,
    ),
    Planted(
        "a document is whole only with the last byte of its coding",
        "_http/content_coding.py",
        "        return self._member.eof",
        "        return self._unpacked > 0",
        _CODING,
    ),
    Planted(
        "an answer that is no page is bounded over all of its pieces",
        "_http/exchange.py",
        "        if len(self._document) > bound:",
        "        if len(piece) > bound:",
        _EXCHANGE,
    ),
    Planted(
        "a refusal that is cut is not believed",
        "_wire/wire.py",
        "            if not request.has_checkpoint:\n                raise self._failure",
        "            if not request.has_checkpoint and not request.is_refusal:\n"
        "                raise self._failure",
        _EXCHANGE,
    ),
    Planted(
        "bytes that have come earn time for those to come",
        "_http/deadline.py",
        "        self._received += count",
        "        self._received = count",
        _DEADLINE,
    ),
    Planted(
        "an operation that took longer than its caller's timeout came too late",
        "_http/deadline.py",
        "        if asked is not None and monotonic() - asked > self._seconds:",
        "        if asked is not None and monotonic() - asked > self.__index__():",
        _DEADLINE,
    ),
    Planted(
        "waiting for a connection takes a third of the deadline at most",
        "_http/exchange.py",
        "        name: third if bound is None else min(bound, third) for",
        "        name: None if bound is None else min(bound, third) for",
        _DEADLINE,
    ),
    Planted(
        "the password of an address is a secret by itself",
        "_http/redaction.py",
        "self._url.password or self._url.username, self._url.userinfo.decode()",
        "self._url.userinfo.decode()",
        _REDACTION,
    ),
    Planted(
        "what httpx logs is rewritten only while a feed is asked",
        "_http/redaction.py",
        "            _asking.reset(former)",
        "            pass",
        _REDACTION,
    ),
    Planted(
        "the events of Arrow's batches are counted over all of them",
        "arrow/page_decoder.py",
        "            self._events += len(found)",
        "            self._events = len(found)",
        _ARROW,
    ),
)
