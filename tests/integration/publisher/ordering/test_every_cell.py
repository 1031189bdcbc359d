"""The table in docs/ordering.md and the tests beside this one say the same."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from harness.ordering_table import LACKING, SEQUENCING, SHOWN, documented


def test_every_cell_is_shown():
    """Every cell of the document's table has a test on each database that it names."""
    for file in Path(__file__).parent.glob("test_*.py"):
        spec = spec_from_file_location(f"cells_{file.stem}", file)
        spec.loader.exec_module(module_from_spec(spec))
    assert {(row, case.column) for row, case in SHOWN} == documented()
    sequenced = {row for row, column in documented() if column == "sequenced"}
    for case in SEQUENCING:
        lacking = {row for row, cases in LACKING.items() if case in cases}
        assert {row for row, shown in SHOWN if shown == case} == sequenced - lacking
