"""Tokens are made once, and kept as hashes."""

import json
import re
from hashlib import sha256

import pytest
from harness.command_line import invoke

from zeroeventhub.cli.tokens import authorization, read_tokens
from zeroeventhub.errors import ConfigurationError

BILLING, OLD = "b" * 43, "o" * 43


def hashed(token):
    """The hash of a token."""
    return f"sha256:{sha256(token.encode()).hexdigest()}"


def test_token_is_printed_once_with_its_line(tmp_path):
    """The line that is printed is one of the token file, and the hash that of the token."""
    shown = re.fullmatch(r"Token: (\S{43})\nLine:  (.*)\n", invoke("token", "new", "a b").stdout)
    file = tmp_path / "tokens.toml"
    file.write_text(f"{shown[2]}\nbilling = ['{hashed(BILLING)}', '{hashed(OLD)}']\n")
    names = {hashed(shown[1]): "a b", hashed(BILLING): "billing", hashed(OLD): "billing"}
    assert read_tokens(file) == names
    other = json.loads(invoke("token", "new", "a b", "--json").stdout)
    assert other["token"] != shown[1]
    assert invoke("token", "new", "a\nb").exit_code == 2


def test_token_itself_is_not_taken_for_its_hash(tmp_path):
    """A file that holds a token in the place of its hash is refused, and the token not repeated."""
    file = tmp_path / "tokens.toml"
    file.write_text(f"\nbilling = ['{BILLING}']")
    with pytest.raises(ConfigurationError, match="line 2, billing: ") as raised:
        read_tokens(file)
    assert BILLING not in str(raised.value)


def test_token_of_two_readers_is_refused(tmp_path):
    """A hash under two names would give its reader the rights of the last one alone."""
    file = tmp_path / "tokens.toml"
    file.write_text(f"audit = ['{hashed(OLD)}']\nbilling = ['{hashed(BILLING)}', '{hashed(OLD)}']")
    with pytest.raises(ConfigurationError, match="one hash for two readers, audit and billing"):
        read_tokens(file)


@pytest.mark.parametrize(
    ("tokens", "readers", "words"),
    [
        (None, {"billing": {}}, "give --token-file"),
        ({hashed(BILLING): "billing"}, {"biling": {}}, "has no token of its readers biling"),
        ({hashed(BILLING): "b"}, {"b": {"types": ["x"], "skip_types": ["y"]}}, "not both"),
        ({hashed(BILLING): "b"}, {"b": {"burst": 3}}, "needs a rate"),
        ({hashed(BILLING): "b"}, {"b": {"partitions": [-1]}}, "partitions of a Principal"),
    ],
)
def test_rights_that_mean_nothing_are_refused(tokens, readers, words):
    """Readers without a token, and rights that contradict each other, are no feed's."""
    with pytest.raises(ConfigurationError, match=words):
        authorization(tokens, readers, may_append=False)
    assert authorization(None, None, may_append=False) is None
