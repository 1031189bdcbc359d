"""The commands that guides show in passing run as they stand, beside a shop and its billing."""

import re

import pytest
from harness.guides import DOCUMENTS, block
from harness.operated import ADDRESS, carry_out, shop_in_files
from harness.statements import scalars

from zeroeventhub import Event, Failures


@pytest.fixture
def shop(empty_folder):
    """A shop in an empty folder, with three orders that were billed and seven that could not be."""

    def broken(_, event: Event):
        raise ValueError

    with shop_in_files() as shop:
        shop.place(*range(3, 10))
        shop.bill(broken, failures=Failures(then="set-aside", tries=1))
        yield shop


@pytest.mark.parametrize("document", ["../README.md", "archive.md", "consumers.md", "retention.md"])
def test_commands_of_a_guide_run(document, shop, tmp_path):
    """Each command ends well, except for `serve`, which does not end."""
    text = (DOCUMENTS / document).read_text().replace("\\\n", "")
    commands = re.findall(r"^    (zeroeventhub (?!serve ).*)$", text, re.MULTILINE)
    assert commands
    history, erasable = (str(tmp_path / name) for name in ("history", "erasable"))
    for command in commands:
        if " erase " in command:  # before anything is trimmed
            sealing, _, _ = command.replace(" erase ", " seal ").partition("--event-id")
            carry_out(sealing, {"/var/history/orders": erasable})
    for command in commands:
        archive = erasable if "--erasable" in command else history
        carry_out(command, {ADDRESS: shop.url, "/var/history/orders": archive}, answer="y\n")


def test_consumers_of_a_partition_are_listed(shop):
    """The statement of the guide to partitions lists the consumers that have a cursor in one."""
    assert scalars(shop.billing, block("partitions.md", "consumers")) == ["billing"]
