"""The publisher that misbehaves: its index, and its verdict on a client."""

import json

import httpx
import pytest
from harness.checked import verdict_on

from zeroeventhub.conformance.misbehaving import all_scenarios


@pytest.mark.parametrize("applied", ["01", "01223", "0132", "0123!"])
def test_verdict_says_what_is_wrong(scenarios_url, applied):
    """A client that loses, repeats or shuffles events does not pass, and neither does an error."""
    lines = ['{"error":1}' if n == "!" else f'{{"data":{{"n":{n}}}}}' for n in applied]
    verdict = verdict_on(f"{scenarios_url}/good", lines)
    assert not verdict["passed"]
    reason = "error" if "!" in applied else "4 events should have been applied"
    assert reason in verdict["reasons"][0]


@pytest.mark.parametrize("line", ["[]", "{", '{"data":1,"partition":Infinity}'])
def test_report_of_another_form_is_judged(scenarios_url, line):
    """A client whose report cannot be read gets a verdict that says so."""
    verdict = verdict_on(f"{scenarios_url}/good", [line])
    assert "cannot be read" in verdict["reasons"][0]


def test_report_in_chunks_is_no_verdict(scenarios_url):
    """A report without a length is refused, and its client is not judged."""
    lines = (f'{{"data":{{"n":{n}}}}}\n'.encode() for n in range(4))
    assert httpx.post(f"{scenarios_url}/good/verdict", content=lines).status_code == 411


def test_index_lists_every_scenario(scenarios_url):
    """The address of the scenarios lists them, with what a right client has applied."""
    listed = httpx.get(f"{scenarios_url}/").json()
    assert [entry["name"] for entry in listed] == list(all_scenarios())
    assert listed[0]["applied"] == {"0": [json.dumps({"n": n}).replace(" ", "") for n in range(4)]}
    assert httpx.get(f"{scenarios_url}/nothing").status_code == 404
    assert httpx.get(f"{scenarios_url}/cut-3/expected").json()["name"] == "cut-3"


def test_redirection_that_is_followed_is_held_against_a_client(scenarios_url):
    """A client that follows a redirection to another origin does not pass."""
    feed = f"{scenarios_url}/redirect@follower"
    httpx.get(feed, follow_redirects=True)
    assert "redirection" in verdict_on(feed, ['{"error":"moved"}'])["reasons"][0]
