"""Run the tests of `make test` by every supported Python that this machine has beside its own."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PYTEST = ["-m", "pytest", "--numprocesses=auto", "-q"]


def main() -> int:
    """Run them; return 1 if a test failed by one of them."""
    outcomes = {version: _outcome(version) for version in VERSIONS if version != OWN}
    for version, outcome in outcomes.items():
        sys.stdout.write(f"Python {version}: {outcome}\n")
    return int("failed" in outcomes.values())


def _outcome(version: str) -> str:
    interpreter = _found(version)
    if interpreter is None:
        return "not on this machine"
    environment = ROOT / f".venv-python{version}"
    python = environment / "bin" / "python"
    subprocess.run([interpreter, "-m", "venv", environment], check=True)
    pip = [python, "-m", "pip", "install", "-q"]
    subprocess.run([*pip, "pip>=25.1"], check=True)
    demo = ["--editable", ".[demo]", "--group", "test", "--group", "spark", "--prefer-binary"]
    subprocess.run([*pip, *demo], cwd=ROOT, check=True)
    tests = subprocess.run([python, *PYTEST], cwd=ROOT, check=False)
    return "failed" if tests.returncode else "passed"


def _found(version: str) -> str | None:
    """Find an interpreter: of the path, of uv, of pyenv."""
    for program, *arguments in (
        # What pyenv puts on the path is there for versions that are not switched on, too.
        [f"python{version}", "-c", "import sys; print(sys.executable)"],
        ["uv", "python", "find", "--no-python-downloads", version],
        ["pyenv", "prefix", version],
    ):
        if shutil.which(program):
            command = [program, *arguments]
            shown = subprocess.run(command, check=False, capture_output=True, text=True)
            if shown.returncode == 0:
                place = Path(shown.stdout.strip())
                return str(place / "bin" / "python" if place.is_dir() else place)
    return None


if __name__ == "__main__":
    sys.exit(main())
