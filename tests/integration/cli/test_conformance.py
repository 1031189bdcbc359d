"""`zeroeventhub conformance`: exit codes, output, files for CI."""

import json
from xml.etree import ElementTree as ET

from harness.command_line import invoke
from harness.mutant_publishers import MUTANTS, log_publisher, publisher
from harness.web import serving

QUICK = ["--only", "lines-strict", "--only", "page-sizes", "--only", "closed"]


def test_conforming_feed_ends_with_0():
    """A conforming feed has a line for each check and a summary, which show no secret."""
    with serving(publisher()) as url:
        shown = invoke("conformance", f"{url}/feed", *QUICK)
        secret = f"{url}/feed?key=canary".replace("http://", "http://user:canary@")
        silent = invoke("conformance", secret, *QUICK, "--json", "-H", "Authorization: canary")
    assert shown.exit_code == 0, shown.stdout + shown.stderr
    *lines, summary = shown.stdout.splitlines()
    assert lines[:2] == ["pass  page-sizes", "skip  closed  The feed has no closed partition."]
    assert summary == "2 passed, 0 with a note, 0 failed, 1 skipped"
    assert silent.exit_code == 0, silent.stderr
    assert "canary" not in silent.stdout + silent.stderr


def test_failed_check_shows_what_was_sent_and_what_came(tmp_path):
    """A failed check shows the request and the answer, as text, --json and --junit."""
    with serving(publisher(MUTANTS["sends NaN"])) as url:
        shown = invoke("conformance", f"{url}/feed", *QUICK, "--junit", tmp_path / "results.xml")
        as_json = invoke("conformance", f"{url}/feed", *QUICK, "--json")
    assert shown.exit_code == 1
    failed = shown.stdout.partition("fail  ")[2].splitlines()
    assert failed[0] == "lines-strict"
    assert [line[:12].strip() for line in failed[1:5]] == ["found", "asked", "sent", "came"]
    assert "GET /feed/events?token=t1&partition=0&cursor=_first" in failed[3]
    assert "200, application/x-ndjson, " in failed[4]
    assert "\x1b" not in shown.stdout
    suite = ET.parse(tmp_path / "results.xml").getroot().find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    document = json.loads(as_json.stdout)
    assert as_json.exit_code == 1
    (failed,) = [entry for entry in document["checks"] if entry["outcome"] == "fail"]
    assert (failed["answer"]["status"], failed["request"]["method"]) == (200, "GET")


def test_events_are_appended_only_if_that_is_allowed(sqlite):
    """A check that appends is refused without --writable, and made with it."""
    command = ["--only", "append", "--json"]
    with serving(log_publisher(sqlite)) as url:
        refused = invoke("conformance", f"{url}/feed", *command)
        made = invoke("conformance", f"{url}/feed", *command, "--writable")
    assert (refused.exit_code, "--writable" in refused.stderr) == (2, True)
    (found,) = json.loads(made.stdout)["checks"]
    assert (made.exit_code, found["outcome"]) == (0, "pass")
