"""The console script `toki`: start the proxy without knowing mitmproxy, or find the script to load into one's own;
look at a server, and at what was recorded.

Exit status: 0 fine, 1 advice or findings, 2 could not run (one line on stderr says why).
"""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from toki import __version__
from toki.gguf import read_header
from toki.inspect import advise as advice_on
from toki.inspect import doctor as diagnosis
from toki.inspect import report as reporting
from toki.inspect.examine import KEY_VARIABLE
from toki.inspect.examine import examine
from toki.inspect.records import Unreadable
from toki.inspect.records import checked
from toki.inspect.records import each
from toki.inspect.records import findings
from toki.inspect.records import own
from toki.inspect.records import own_of_each
from toki.inspect.records import requests
from toki.inspect.records import working_set
from toki.printable import printable
from toki.server import Auth
from toki.server import LlamaServerBackend
from toki.server import ServerError
from toki.settings import URL_FORM
from toki.settings import default_db
from toki.settings import server_url

MOMENT_FORM = "30m, 12h, 7d or 2026-01-31T12:00"
RECENT = 2_000  # recorded requests that a server is judged by
FORMATS = {"text": reporting.text, "markdown": reporting.markdown, "json": reporting.as_json}
SCRIPT = "toki_addon.py"
CONNECTIONS = "mitmproxy.proxy.server"  # the logger of connections, each opened and closed, and of errors on them
GREETING_S = 2.0  # how long `toki run` waits for the server to say what it is


class CannotRun(Exception):
    """Why a command could not do its work, in one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (default: the process's own) name; its exit status."""
    parser = _parser()
    known, others = parser.parse_known_args(arguments)
    if others and known.command is not run:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    command: Callable[[argparse.Namespace, Sequence[str]], int] = known.command
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the locale can't show must not end a report
    try:
        status = command(known, others)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except CannotRun as error:
        print(f"toki: {printable(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever reads has seen enough (| head)
        _give_up_stdout()
        return 0
    except OSError as error:
        if sys.stdout is None or error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        _give_up_stdout()
        print(f"toki: what was found can't be written: {error.strerror}", file=sys.stderr)
        return 2


def _give_up_stdout() -> None:
    """Nothing is left to flush at exit, where Python would complain."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="toki", description="Keep llama-server's KV cache working for your agents.")
    parser.add_argument("--version", action="version", version=f"toki {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    path_parser = commands.add_parser(
        "path",
        help="print the path of the script for mitmdump -s",
        description='Print the path of the script that mitmproxy loads: mitmdump -s "$(toki path)"',
    )
    path_parser.set_defaults(command=path)

    run_parser = commands.add_parser(
        "run",
        help="start mitmdump with toki in front of a llama-server",
        usage="toki run URL [--listen-host H] [--port P] [mitmdump arguments …]",
        description="Start mitmdump in reverse mode with toki in front of the llama-server at URL, until Ctrl-C.",
        epilog="All other arguments go to mitmdump, e.g. --set toki_mode=observe; they follow the URL.",
        allow_abbrev=False,
    )
    _add_url(run_parser)
    run_parser.add_argument("--listen-host", default="127.0.0.1", metavar="H", help="default: %(default)s")
    run_parser.add_argument(
        "-p", "--port", "--listen-port", type=int, default=8081, metavar="P", help="default: %(default)s"
    )
    run_parser.set_defaults(command=run)

    doctor_parser = commands.add_parser(
        "doctor",
        help="say what could be better about how a llama-server is run",
        description="Look at the llama-server at URL, and say whether steering helps there and which flags would be "
        "better. Asks before it sends probes: small requests that take the slots of what is there now.",
        epilog=f"A server that wants a key gets the one in the environment variable {KEY_VARIABLE}. "
        "Exit status: 0 good, 1 something could be better, 2 nothing could be found out.",
    )
    _add_url(doctor_parser)
    doctor_parser.add_argument("-y", "--yes", action="store_true", help="send probes without asking")
    doctor_parser.add_argument("--model", default="", metavar="NAME", help="behind a router, the model to look at")
    doctor_parser.add_argument(
        "--db",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="FILE",
        help="recorded traffic of this server to judge it by; without FILE toki_db's default",
    )
    doctor_parser.set_defaults(command=doctor)

    report_parser = commands.add_parser(
        "report",
        help="sum up what was recorded",
        description="Totals of the recorded requests, what was processed again and why, and what is not known.",
        epilog="Exit status: 0 nothing to advise, 1 there is advice, 2 could not run.",
    )
    _add_db(report_parser)
    _add_since(report_parser)
    report_parser.add_argument("--format", choices=tuple(FORMATS), default="text", help="default: %(default)s")
    report_parser.set_defaults(command=report)

    advise_parser = commands.add_parser(
        "advise",
        help="predict what recorded traffic costs with other flags",
        description="Replay recorded traffic on toki's model of llama-server, with 1 to 32 slots and 0 to 64 GiB of "
        "RAM cache, and print the prompt tokens that each would evaluate.",
        epilog="Exit status: 0 nothing is much better than what was recorded, 1 something is, 2 could not run.",
    )
    _add_db(advise_parser)
    _add_since(advise_parser)
    advise_parser.add_argument(
        "--latest", type=_positive, default=1000, metavar="N", help="that many requests at most (default: %(default)s)"
    )
    advise_parser.add_argument(
        "--model", type=Path, metavar="GGUF", help="the model file, for what a token costs (default: 128 KiB)"
    )
    advise_parser.add_argument(
        "--ctx", type=_positive, metavar="N", help="context of all slots together, in tokens (default: always enough)"
    )
    advise_parser.add_argument("--json", action="store_true", help="print JSON")
    advise_parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it too (needs matplotlib)")
    advise_parser.set_defaults(command=advise)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: must be at least 1")
    return value


def _add_since(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", type=_moment, default=0.0, metavar="WHEN", help=f"{MOMENT_FORM}; default: all")


def _moment(text: str) -> float:
    """Seconds of unix time."""
    match = re.fullmatch(r"([0-9]+)([smhd])", text)
    if match:
        return time.time() - int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]]
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form {MOMENT_FORM}") from None


def _add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help=f"the llama-server, {URL_FORM}")


def _add_db(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--db", type=Path, metavar="FILE", help="recorded traffic; default: where toki_db is by default"
    )


def path(_: argparse.Namespace, __: Sequence[str]) -> int:
    """`toki path`: print where the script is that mitmproxy loads."""
    print(addon_script(Path(__file__).parent))
    return 0


def run(known: argparse.Namespace, others: Sequence[str]) -> int:
    """`toki run`: mitmdump in this process, in reverse mode before `known.url`, with `others` as further arguments."""
    try:
        origin, prefix = server_url(known.url)
    except ValueError as error:
        raise CannotRun(str(error)) from error
    script = addon_script(Path(__file__).parent)
    _check_free(known.listen_host, known.port)
    try:
        from mitmproxy.tools.main import mitmdump
    except ImportError as error:
        raise CannotRun(f"mitmproxy is not installed here ({error}): pip install mitmproxy") from error
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a service's log gets each line as it comes
    print(what_to_paste(origin, prefix, known.listen_host, known.port))
    if trouble := _trouble_with(f"{origin}{prefix}"):
        print(f"toki: {trouble}; requests fail until a llama-server answers there", file=sys.stderr, flush=True)
    if not {"-v", "--verbose"} & set(others):
        logging.getLogger(CONNECTIONS).setLevel(logging.WARNING)  # else four lines stand around toki's one
    # Reverse mode takes no path: a prefix is part of what the client asks for, and toki is told of it.
    # Without flow_detail=0 mitmdump prints each request, which costs 7 % of its time per request.
    try:
        mitmdump(
            [
                *("--mode", f"reverse:{origin}"),
                *("--listen-host", known.listen_host),
                *("--listen-port", str(known.port)),
                *("-s", str(script)),
                *("--set", f"toki_server={origin}{prefix}"),
                *("--set", "flow_detail=0"),
                *others,
            ]
        )
    except SystemExit as stop:  # mitmdump has said why
        return 2 if stop.code else 0
    return 0


def doctor(known: argparse.Namespace, _: Sequence[str]) -> int:
    """`toki doctor`: the verdict on the server at `known.url`, findings and the better command."""
    url = _url(known.url)
    try:
        working = None if known.db is None else working_set(requests(_database(known), latest=RECENT))
        answers = None if known.db is None else checked(_database(known))
    except Unreadable as error:
        raise CannotRun(str(error)) from error
    facts = examine(url, known.model, working, (lambda _: True) if known.yes else _ask)
    found = diagnosis.diagnose(replace(facts, checked=answers))
    print("\n".join(found.lines()))
    if facts.trouble:
        return 2
    return 0 if found.verdict is diagnosis.Verdict.GOOD else 1


def report(known: argparse.Namespace, _: Sequence[str]) -> int:
    """`toki report`: totals and findings of the database."""
    path, since = _database(known), known.since
    try:
        summed = reporting.report(each(path, since), own(path, since), findings(path, since), checked(path, since))
    except Unreadable as error:
        raise CannotRun(str(error)) from error
    print(FORMATS[known.format](summed))
    return 1 if summed.advice else 0


def advise(known: argparse.Namespace, _: Sequence[str]) -> int:
    """`toki advise`: what the recorded traffic would cost with other flags."""
    try:
        header = read_header(known.model) if known.model else None
    except (OSError, ValueError) as error:
        raise CannotRun(f"--model {known.model}: {error}") from error
    try:
        path = _database(known)
        rows = requests(path, known.since, known.latest)
        advice = advice_on.advise(rows, header, known.ctx, own_of_each(path, known.since))
    except (Unreadable, ValueError) as error:
        raise CannotRun(str(error)) from error
    print(advice_on.as_json(advice) if known.json else advice_on.text(advice))
    if known.plot is not None:
        try:
            advice_on.plot(advice, known.plot)
        except ImportError:
            print("toki: no plot without matplotlib: pip install matplotlib", file=sys.stderr)
        except (OSError, ValueError) as error:
            raise CannotRun(f"--plot {known.plot}: {error}") from error
    return 1 if advice.worthwhile else 0


def _ask(cost: str) -> bool:
    """Whether probes may be sent: `y` on stdin. The question goes to stderr, since the answer's first line is fixed."""
    print(f"Send probes? {cost}. [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin is not None and sys.stdin.readline().strip().lower() in ("y", "yes")


def _url(text: str) -> str:
    try:
        return "".join(server_url(text))
    except ValueError as error:
        raise CannotRun(str(error)) from error


def _database(known: argparse.Namespace) -> Path:
    """The file that --db names, or where toki_db is by default."""
    try:
        return default_db(sys.platform, os.environ) if known.db in (None, Path()) else known.db
    except ValueError as error:
        raise CannotRun("there is no home directory to find a database in; name a file with --db") from error


def addon_script(package: Path) -> Path:
    """The script beside `package`'s modules (a wheel) or at the root of the checkout that `package` lies in."""
    for script in (package / SCRIPT, package.parents[1] / SCRIPT):
        if script.is_file():
            return script
    raise CannotRun(f"{SCRIPT} is missing from this installation: pip install --force-reinstall mitmproxy-toki")


def _check_free(host: str, port: int) -> None:
    """Raise CannotRun where nothing can listen on `port`: mitmdump would say so in the middle of its log."""
    if not 1 <= port <= 65535:
        raise CannotRun(f"--port {port}: must be 1 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            if sys.platform != "win32":  # as asyncio does: a port in TIME_WAIT is free
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
    except OSError as error:
        raise CannotRun(f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port") from error


def _trouble_with(url: str) -> str:
    """Why the server at `url` can't be talked to now; "" where it answers, be it that it wants a key or still loads."""
    backend = LlamaServerBackend(url)
    try:
        backend.props(Auth(), GREETING_S)
    except ServerError as error:
        if error.status is None:
            return f"nothing answers at {url} yet ({error})"
        if error.status not in (401, 403, 503):
            return f"what answers at {url} is no llama-server ({error})"
    finally:
        backend.close()
    return ""


def what_to_paste(origin: str, prefix: str, host: str, port: int) -> str:
    reachable = "127.0.0.1" if host in ("", "0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    root = f"http://{reachable}:{port}"
    base = f"{root}{prefix}"
    return f"""\
toki listens on {base} in front of {origin}{prefix}; Ctrl-C ends it. Point your agents at it:

  export OPENAI_BASE_URL={base}/v1
  export ANTHROPIC_BASE_URL={base}
  curl {base}/v1/chat/completions -d '{{"messages": [{{"role": "user", "content": "Hello"}}]}}'

What becomes of their prompts: {root}/toki/
"""
