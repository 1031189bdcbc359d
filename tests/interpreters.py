"""Run the tests of `make test` by every supported Python that this machine has beside its own."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PYTEST = ["-m", "pytest", "--numprocesses=auto", "--maxprocesses=4", "-q"]


def main() -> int:
    """Run them; return 1 if a test failed by one of them."""
    outcomes = {version: _outcome(version) for version in VERSIONS}
    for version, outcome in outcomes.items():
        sys.stdout.write(f"Python {version}: {outcome}\n")
    return int("failed" in outcomes.values())


def _outcome(version: str) -> str:
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return "is what `make test` runs on"
    interpreter = next(_found(version), None)
    if interpreter is None:
        return "not on this machine"
    environment = ROOT / f".venv-python{version}"
    python = environment / "bin" / "python"
    subprocess.run([interpreter, "-m", "venv", environment], check=True)
    for arguments in (
        ["pip>=25.1"],
        ["--editable", ".[demo]", "--group", "test", "--prefer-binary"],
    ):
        subprocess.run([python, "-m", "pip", "install", "-q", *arguments], cwd=ROOT, check=True)
    return (
        "failed"
        if subprocess.run([python, *PYTEST], cwd=ROOT, check=False).returncode
        else "passed"
    )


def _found(version: str) -> Iterator[str]:
    """Yield interpreters: of the path, of uv, of pyenv."""
    found = shutil.which(f"python{version}")
    # What pyenv puts on the path is there for versions that are not switched on, too.
    if (
        found
        and subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode == 0
    ):
        yield found
    for program, arguments in (
        ("uv", ["python", "find", "--no-python-downloads", version]),
        ("pyenv", ["prefix", version]),
    ):
        if shutil.which(program):
            shown = subprocess.run(
                [program, *arguments], check=False, capture_output=True, text=True
            )
            if shown.returncode == 0:
                place = Path(shown.stdout.strip())
                yield str(place / "bin" / "python" if place.is_dir() else place)


if __name__ == "__main__":
    sys.exit(main())
