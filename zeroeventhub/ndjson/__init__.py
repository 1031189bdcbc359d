"""Bytes to pages and documents, and back; the only place that knows their form, without any I/O."""

from zeroeventhub.ndjson.documents import (
    decode_counted_cursor,
    decode_cursor,
    decode_info,
    decode_key_page,
    decode_lag,
    decode_segments,
    decode_splits,
    encode_info,
    encode_key_page,
    encode_lag,
    encode_segments,
)
from zeroeventhub.ndjson.page_decoder import PageDecoder, PageEvents
from zeroeventhub.ndjson.page_encoder import (
    MEDIA_TYPE,
    encode_page,
    encode_page_v1,
    parts_of,
)

__all__ = [
    "MEDIA_TYPE",
    "PageDecoder",
    "PageEvents",
    "decode_counted_cursor",
    "decode_cursor",
    "decode_info",
    "decode_key_page",
    "decode_lag",
    "decode_segments",
    "decode_splits",
    "encode_info",
    "encode_key_page",
    "encode_lag",
    "encode_page",
    "encode_page_v1",
    "encode_segments",
    "parts_of",
]
