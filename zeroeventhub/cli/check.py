"""`zeroeventhub check`: whether a table can be published, and what it lacks."""

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from zeroeventhub.cli.options import as_json
from zeroeventhub.cli.published import open_feed, publish_options
from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.finding import Finding

__all__ = ["check"]

FAILED = 1
_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
@publish_options
@click.option("--strict", is_flag=True, help="Fail on warnings as well.")
@as_json
def check(*, strict: bool, as_json: bool, **table: Any) -> None:
    """Check what a feed over a table relies on, without changing anything.

    Takes the options of `zeroeventhub serve`. Exit codes: 0 it can be published, 1 it cannot, or
    there are warnings and --strict, 2 there was nothing to check.
    """
    engine, feed = open_feed(**table)
    bound: Any = feed.bind(engine)
    try:
        findings: list[Finding] = bound.check()
    except Unavailable as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            _show(finding)
    failing = {"error", "warning"} if strict else {"error"}
    if any(finding.level in failing for finding in findings):
        sys.exit(FAILED)


def _show(finding: Finding) -> None:
    mark = click.style(f"{finding.level:7}", fg=_COLOURS[finding.level])
    click.echo(f"{mark}  {finding.subject:10}  {finding.sentence}")
    if finding.statement is not None:
        click.echo(f"{'':21}{finding.statement}")
