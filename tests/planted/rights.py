"""Mistakes in who may read what, and what is kept for whom."""

from harness.planted import Planted

_VIEW = ("tests/integration/server/test_view.py",)
_AHEAD = ("tests/integration/server/test_read_ahead.py", "tests/integration/server/test_view.py")

PLANTED = (
    Planted(
        "a feed without types shows nothing to a principal with types",
        "server/view.py",
        "            if EVENT_TYPES not in extensions:",
        "            if not extensions:",
        _VIEW,
    ),
    Planted(
        "extensions that tell of all types are closed to a principal with types",
        "server/view.py",
        "            extensions -= _TELLING\n",
        "",
        _VIEW,
    ),
    Planted(
        "answers of an authorized feed vary by Authorization",
        "server/access.py",
        """            MutableHeaders(raw=response.raw_headers).add_vary_header("Authorization")""",
        "            pass",
        ("tests/integration/server/test_access.py", "tests/integration/server/test_authorize.py"),
    ),
    Planted(
        "a principal has a rate",
        "server/quotas.py",
        "        if early > interval * 1e-6:",
        "        if early > interval * 1e6:",
        ("tests/integration/server/test_quotas.py",),
    ),
    Planted(
        "a principal with types gets no page that was kept for others",
        "server/view.py",
        "        if self._principal.is_restricted_to_types or cursor == LAST:",
        "        if cursor == LAST:",
        _AHEAD,
    ),
    Planted(
        "a page that may change is not kept",
        "server/read_ahead.py",
        " for question, page in found if page.tag is not None]",
        " for question, page in found]",
        _AHEAD,
    ),
    Planted(
        "a kept page expires",
        "server/kept_pages.py",
        "        if until < monotonic():",
        "        if until < 0:",
        ("tests/integration/server/test_kept_pages.py", *_AHEAD),
    ),
    Planted(
        "reading ahead leaves connections to waiting readers",
        "server/source.py",
        "        return self._line.taken * 2 < self._connections and",
        "        return",
        ("tests/integration/server/test_source.py", *_AHEAD),
    ),
)
