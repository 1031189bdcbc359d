"""`zeroeventhub conformance`: exit codes, output, files for CI."""

import json
from xml.etree import ElementTree as ET

import pytest
from harness.command_line import invoke
from harness.mutant_publishers import MUTANTS, publisher
from harness.web import serving

QUICK = ["--only", "lines-strict", "--only", "page-sizes", "--only", "closed"]


@pytest.fixture
def good_url():
    """The URL of a feed that conforms."""
    with serving(publisher()) as url:
        yield f"{url}/feed"


@pytest.fixture
def bad_url():
    """The URL of a feed that sends NaN."""
    with serving(publisher(MUTANTS["sends NaN"])) as url:
        yield f"{url}/feed"


def test_conforming_feed_ends_with_0(good_url):
    """A line for each check and a summary; nothing failed."""
    shown = invoke("conformance", good_url, *QUICK)
    assert shown.exit_code == 0, shown.stdout + shown.stderr
    *lines, summary = shown.stdout.splitlines()
    assert lines[:2] == ["pass  page-sizes", "skip  closed  The feed has no closed partition."]
    assert summary == "2 passed, 0 with a note, 0 failed, 1 skipped"


def test_failed_check_shows_what_was_sent_and_what_came(bad_url, tmp_path):
    """A failed check shows the request and the answer, as text, --json and --junit."""
    shown = invoke("conformance", bad_url, *QUICK, "--junit", tmp_path / "results.xml")
    assert shown.exit_code == 1
    failed = shown.stdout.partition("fail  ")[2].splitlines()
    assert failed[0] == "lines-strict"
    assert [line[:12].strip() for line in failed[1:5]] == ["found", "asked", "sent", "came"]
    assert "GET /feed/events?token=t1&partition=0&cursor=_first" in failed[3]
    assert "200, application/x-ndjson, " in failed[4]
    assert "\x1b" not in shown.stdout
    suite = ET.parse(tmp_path / "results.xml").getroot().find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    shown = invoke("conformance", bad_url, *QUICK, "--json")
    document = json.loads(shown.stdout)
    assert shown.exit_code == 1
    (failed,) = [entry for entry in document["checks"] if entry["outcome"] == "fail"]
    assert (failed["answer"]["status"], failed["request"]["method"]) == (200, "GET")


def test_header_is_sent_and_not_shown(good_url):
    """Headers, and the credentials and the query of the URL, are not printed."""
    url = good_url.replace("http://", "http://user:canary@") + "?key=canary"
    shown = invoke("conformance", url, *QUICK, "--json", "-H", "Authorization: canary")
    assert shown.exit_code == 0, shown.stderr
    assert "canary" not in shown.stdout + shown.stderr
