"""Credentials reach a feed from options, variables and files, and their lack is explained."""

import pytest
from harness.command_line import invoke
from harness.readers import mounted
from harness.shop import orders

from zeroeventhub import TableFeed
from zeroeventhub.server import bearer_tokens

TOKEN = "9f8e7d6c5b4a3f2e1d0c9b8a7f6e5d4c"


@pytest.fixture
def guarded(shop):
    """The URL of a feed that asks for a token."""
    feed = TableFeed(orders, data="data")
    with mounted(feed, shop, authorize=bearer_tokens({TOKEN: "reader"})) as url:
        yield url


COMMANDS = pytest.mark.parametrize("command", [["discover"], ["tail", "--limit", "1"]])


@COMMANDS
def test_refusal_names_the_options_that_help(guarded, command):
    """Without credentials a command speaks of its own options, and of no library."""
    result = invoke(*command, guarded)
    assert result.exit_code == 2
    assert "-H 'Authorization: Bearer" in result.stderr
    assert "--token-file" in result.stderr
    assert "httpx" not in result.stderr


@COMMANDS
def test_headers_come_from_the_environment(guarded, command, monkeypatch):
    """The variable has a header a line, whose values may have spaces."""
    monkeypatch.setenv(
        "ZEROEVENTHUB_HEADER", f"X-Team: shop and more\nAuthorization: Bearer {TOKEN}"
    )
    assert invoke(*command, guarded).exit_code == 0


@COMMANDS
def test_token_comes_from_a_file(guarded, command, tmp_path, monkeypatch):
    """No token has to stand on the command line, where every user of the machine sees it."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert invoke(*command, guarded, "--token-file", file).exit_code == 0
    monkeypatch.setenv("ZEROEVENTHUB_TOKEN_FILE", str(file))
    assert invoke(*command, guarded).exit_code == 0


@pytest.mark.parametrize("content", ["", "two words", "tøken", "a\nb"])
def test_file_without_a_token_is_refused(guarded, content, tmp_path):
    """What is no token is not sent, and not shown."""
    file = tmp_path / "token"
    file.write_text(content)
    result = invoke("discover", guarded, "--token-file", file)
    assert (result.exit_code, "does not hold a token" in result.stderr) == (2, True)


def test_unknown_token_of_the_layout_is_answered_with_the_right_one(shop):
    """The answer to a made-up token names the feed's token, and where it is found."""
    import httpx

    with mounted(TableFeed(orders, data="data"), shop) as url:
        place = {"token": "x", "partition": 0, "cursor": "_first"}
        answer = httpx.get(f"{url}/events", params=place)
        token = httpx.get(url).json()["token"]
    assert answer.status_code == 409
    assert f"'{token}'" in answer.json()["detail"]
    assert "address" in answer.json()["detail"]
    assert "have changed" not in answer.text
