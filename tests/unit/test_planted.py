"""The rules that the mutation check removes are still where it looks for them."""

import shutil

import pytest
from harness.planted import PACKAGE, PLANTED


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_every_rule_can_be_removed(planted, tmp_path):
    """A change fits the source as it is, changes it, and leaves something that compiles."""
    module = tmp_path / planted.module
    module.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(PACKAGE / planted.module, module)
    planted.plant(tmp_path)
    assert module.read_text() != (PACKAGE / planted.module).read_text()


def test_rules_have_names_of_their_own_and_tests_that_are_there():
    """Each can be asked for alone, and every file of tests that a mistake names exists."""
    assert len({planted.name for planted in PLANTED}) == len(PLANTED)
    named = {name for planted in PLANTED for name in planted.tests if name.startswith("tests/")}
    assert [name for name in named if not (PACKAGE.parent / name).exists()] == []
