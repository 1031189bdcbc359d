"""The forms in which pages are sent: their tags, and where pages are made into them."""

import threading
import zlib

import pyarrow.ipc
import pytest
from harness.readers import Numbers, get, mounted

from zeroeventhub import Event, FeedInfo, Page
from zeroeventhub.arrow import MEDIA_TYPE as ARROW
from zeroeventhub.ndjson import MEDIA_TYPE as LINES


def test_each_form_has_a_tag_of_its_own():
    """A client is told that it holds a page only for the form and the coding that it holds."""

    class Full(Numbers):
        def read(self, partition, cursor, limit):
            raw = b'{"text":"%b"}' % (b"x" * 2_000)
            return Page([Event(raw)], "2", full=True)

    forms = [
        {"Accept": accept, "Accept-Encoding": coding}
        for accept in (LINES, ARROW)
        for coding in ("identity", "gzip", "zstd")
    ]
    with mounted(Full(), arrow=True, compressed=True) as url:
        lesser = {"Accept": f"{ARROW};q=0.5, application/*;q=0.6"}
        assert get(url, headers=lesser).headers["content-type"] == LINES
        tags = [get(url, cursor="1", headers=form).headers["etag"] for form in forms]
        assert len({*tags}) == len(forms)
        for form, own in zip(forms, tags, strict=True):
            for tag in tags:
                again = get(url, cursor="1", headers={**form, "If-None-Match": tag})
                assert again.status_code == (304 if tag == own else 200)
                assert "content-encoding" not in again.headers or again.status_code == 200


@pytest.mark.parametrize(
    ("headers", "module", "name"),
    [
        ({"Accept-Encoding": "gzip"}, zlib, "compress"),
        ({"Accept": ARROW}, pyarrow.ipc, "new_stream"),
    ],
    ids=["packed", "Arrow"],
)
def test_large_pages_are_made_beside_the_event_loop(headers, module, name, monkeypatch):
    """A large page is made into its form in a thread, so that the host answers others meanwhile."""

    class Heavy:
        async def info(self):
            self.loop = threading.get_ident()
            return FeedInfo.of(1)

        async def read(self, partition, cursor, limit):
            return Page([Event(b'{"text":"%b"}' % (b"x" * 400))] * 1_000, "1")

    made, threads = getattr(module, name), []

    def noting(*arguments, **options):
        threads.append(threading.get_ident())
        return made(*arguments, **options)

    monkeypatch.setattr(module, name, noting)
    feed = Heavy()
    with mounted(feed, arrow=True, compressed=True) as url:
        assert get(url, headers={"Accept-Encoding": "identity", **headers}).status_code == 200
    assert threads
    assert feed.loop not in threads
