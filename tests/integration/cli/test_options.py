"""Credentials reach a feed from options, variables and files, and their lack is explained."""

import httpx
from harness.command_line import invoke
from harness.readers import get, mounted
from harness.shop import orders

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.server import bearer_tokens

TOKEN = "9f8e7d6c5b4a3f2e1d0c9b8a7f6e5d4c"


def test_credentials_come_from_files_and_the_environment(shop, tmp_path, monkeypatch):
    """A token comes from a file or the environment, and no refusal shows a text of them."""
    authorize, feed = bearer_tokens({TOKEN: "reader"}), TableFeed(orders, data="data")
    with mounted(feed, shop, authorize=authorize) as guarded:
        refused = invoke("tail", guarded)
        assert refused.exit_code == 2
        assert "-H 'Authorization: Bearer" in refused.stderr
        assert "--token-file" in refused.stderr
        assert "httpx" not in refused.stderr
        file = tmp_path / "token"
        for content in ("", "kanarek kanarek"):
            file.write_text(content)
            result = invoke("discover", guarded, "--token-file", file)
            assert (result.exit_code, "does not hold a token" in result.stderr) == (2, True)
            assert "kanarek" not in result.stderr
        file.write_text(f"{TOKEN}\n")
        assert invoke("discover", guarded, "--token-file", file).exit_code == 0
        with monkeypatch.context() as patch:
            patch.setenv("ZEROEVENTHUB_TOKEN_FILE", str(file))
            assert invoke("tail", guarded).exit_code == 0
        headers = f"X-Team: shop and more\nAuthorization: Bearer {TOKEN}"
        monkeypatch.setenv("ZEROEVENTHUB_HEADER", headers)
        assert invoke("tail", guarded).exit_code == 0


def test_made_up_token_is_answered_with_the_right_one(shop):
    """The answer to an invented layout token names the right one, and where to find it."""
    with mounted(TableFeed(orders, data="data"), shop) as url:
        answer = get(url, token="x", partition=0, cursor=FIRST)
        token = httpx.get(url).json()["token"]
    assert answer.status_code == 409
    assert f"'{token}'" in answer.json()["detail"]
    assert "address" in answer.json()["detail"]
