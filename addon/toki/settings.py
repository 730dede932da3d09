"""What a user can set: mitmproxy's toki_* options as one table, and their values checked and frozen in one object.

The table OPTIONS feeds mitmproxy and the test of the README's table. mitmproxy checks types (it has bool, int, str and
lists of str, no float); everything else is checked here, so that a bad value is one clear error at start.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from toki.engine.events import Mode

if TYPE_CHECKING:
    from mitmproxy.addonmanager import Loader
    from mitmproxy.options import Options


class Isolate(StrEnum):
    """Whom toki keeps apart (option `toki_isolate`)."""

    OFF = "off"
    KEY = "key"  # the API keys that clients send


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `type` is a typespec of mitmproxy's; `shown` is the default in words where the value says nothing."""

    name: str
    type: Any
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    shown: str = ""

    @property
    def type_text(self) -> str:
        """The type as documentation shows it, e.g. `int`, `seq[str]` or the choices."""
        if self.choices:
            return ", ".join(self.choices)
        return "seq[str]" if self.type == Sequence[str] else str(self.type.__name__)

    @property
    def default_text(self) -> str:
        """The default as documentation shows it, e.g. `10`, `auto`, `""` or `[]`."""
        if self.shown or self.default == "":
            return self.shown or '""'
        return str(self.default).lower() if self.type is bool else str(self.default)


OPTIONS = (
    Option(
        "toki_server",
        Sequence[str],
        [],
        "The llama-servers whose requests toki handles, as http(s)://host[:port][/prefix]; may be given several times. "
        "Where none is given these are the upstreams of reverse mode. Traffic for others passes unseen.",
    ),
    Option(
        "toki_mode",
        str,
        Mode.AUTO.value,
        "What toki does with a request: auto steers where a gain over the server alone is predicted, observe predicts "
        "and records and steers nothing, pin always takes the slot with the longest verified prefix where that is "
        "safe, off passes everything and only keeps rows.",
        choices=tuple(mode.value for mode in Mode),
    ),
    Option(
        "toki_min_reuse",
        int,
        10,
        "How many prompt tokens the server must have reused for a request to count as a hit; fewer are a soft hit. "
        "In mode pin a shorter common prefix is never steered for.",
    ),
    Option(
        "toki_db",
        str,
        "",
        "The SQLite file that gets one row per request: lengths, times and reasons, no prompt text. Where empty, "
        "toki.db in the user's state directory ($XDG_STATE_HOME/toki or ~/.local/state/toki; on macOS "
        "~/Library/Application Support/toki, on Windows %LOCALAPPDATA%/toki).",
        shown="user state directory",
    ),
    Option(
        "toki_embed_url",
        str,
        "",
        "An embedding server, as http(s)://host[:port][/prefix], whose vectors find similar prompts. Where empty, and "
        "whenever it fails, the deterministic embedding of token prefixes is used, which needs no model.",
    ),
    Option(
        "toki_deadline_ms",
        int,
        250,
        "How many milliseconds the look-ups of one request may take (the time grows with its size). Past it the "
        "request goes through as it came.",
    ),
    Option("toki_keep_days", int, 30, "How many days rows are kept in the database."),
    Option(
        "toki_server_flags",
        str,
        "",
        "The flags that llama-server was started with, as on its command line, e.g. '-np 4 --cache-ram 0'. Where "
        "empty, toki finds out what it can by observation.",
    ),
    Option(
        "toki_log_events",
        str,
        "",
        "A file that gets the engine's events, from which its decisions can be replayed: lengths and hashes, no prompt "
        "text. Where empty, none is written.",
    ),
    Option(
        "toki_isolate",
        str,
        Isolate.OFF.value,
        "Whom to keep apart: off no one; key the API keys that clients send: no request is steered to what another "
        "key's request left on the server, and one that would find it there by itself goes elsewhere or without the "
        "cache. It can't keep out a client that chooses its slot itself: see docs/security.md.",
        choices=tuple(each.value for each in Isolate),
    ),
    Option(
        "toki_ping_s",
        int,
        0,
        "After how many seconds of silence a stream gets a comment as a sign of life, again and again until the server "
        "answers, for clients that give up a silent connection. 0 sends none.",
    ),
    Option(
        "toki_verify",
        int,
        0,
        "One in how many requests that can be compared (temperature 0, or a seed given) is asked again without the "
        "server's cache, when nothing runs and no slot loses anything by it; the table checks says how the answers "
        "differ. 0 asks none.",
    ),
    Option(
        "toki_text",
        bool,
        False,
        "Whether toki's page and its API show the text around a difference between two prompts. It lives in memory "
        "only, whatever is set here.",
    ),
    Option(
        "toki_token",
        str,
        "",
        "What clients that are not on this machine must send to see toki's page, API and metrics, as Authorization: "
        "Bearer, or as the password that a browser asks for. Where empty they see nothing, and nothing can be changed. "
        "Long and random, and best in config.yaml: other users see the command lines of processes.",
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The options' values, checked. `servers` has no trailing slashes; empty means the upstreams of reverse mode."""

    servers: tuple[str, ...]
    mode: Mode
    min_reuse: int  # tokens
    db: Path  # absolute
    embed_url: str  # "": prefix embedding
    deadline_ms: int
    keep_days: int
    server_flags: str  # "": find out
    log_events: str  # "": off
    ping_s: int  # 0: off
    verify: int  # 0: off
    text: bool
    token: str = field(repr=False)  # "": none is good
    isolate: Isolate


def add_options(loader: Loader) -> None:
    """Make the options known to mitmproxy."""
    for option in OPTIONS:
        loader.add_option(option.name, option.type, option.default, option.help, option.choices or None)


def check_deferred(deferred: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError where what was given for a number, or for true or false, is none: mitmproxy would drop it
    silently, and the script with it. `deferred`: what `--set` said of options before any addon had made them known."""
    for option in OPTIONS:
        for value in deferred.get(option.name, ()):
            if option.type is bool and value not in ("true", "false", "toggle", ""):
                raise ValueError(f"{option.name}={value!r}: must be true or false")
            try:
                int(value) if option.type is int else None
            except ValueError:
                raise ValueError(f"{option.name}={value!r}: must be a whole number") from None


def from_options(options: Options) -> Settings:
    """The settings that `options` holds. Raises ValueError naming the option, its value and what is allowed."""
    mode, isolate = _mode("toki_mode", options.toki_mode), _isolate("toki_isolate", options.toki_isolate)
    if isolate is Isolate.KEY and mode not in (Mode.AUTO, Mode.PIN):
        raise ValueError(f"toki_isolate=key needs toki_mode auto or pin: in {mode} no request is changed")
    return Settings(
        servers=tuple(_url("toki_server", url) for url in options.toki_server),
        mode=mode,
        min_reuse=_at_least("toki_min_reuse", options.toki_min_reuse, 1),
        db=_file("toki_db", options.toki_db) if options.toki_db else default_db(sys.platform, os.environ),
        embed_url=_url("toki_embed_url", options.toki_embed_url) if options.toki_embed_url else "",
        deadline_ms=_at_least("toki_deadline_ms", options.toki_deadline_ms, 1),
        keep_days=_at_least("toki_keep_days", options.toki_keep_days, 1),
        server_flags=_command_line("toki_server_flags", options.toki_server_flags),
        log_events=str(_file("toki_log_events", options.toki_log_events)) if options.toki_log_events else "",
        ping_s=_at_least("toki_ping_s", options.toki_ping_s, 0),
        verify=_at_least("toki_verify", options.toki_verify, 0),
        text=options.toki_text,
        token=_token("toki_token", options.toki_token),
        isolate=isolate,
    )


URL_FORM = "http(s)://host[:port][/prefix]"
# No user, query or fragment, and no white space anywhere; the host is a name, an IPv4 or a bracketed IPv6 address.
_URL = re.compile(
    r"(?P<origin>(?i:https?)://(?:[^\s/?#@:\[\]]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?)(?P<prefix>/[^\s?#]*)?"
)


_TOKEN = re.compile(r"[!-~]*")


def server_url(text: str) -> tuple[str, str]:
    """Origin and path prefix (without trailing slash) of a server's URL. Raises ValueError for anything else."""
    match = _URL.fullmatch(text)
    if match is None or not 1 <= int(match["port"] or 1) <= 65535:
        raise ValueError(f"{_without_password(text)!r} is not of the form {URL_FORM}")
    return match["origin"], (match["prefix"] or "").rstrip("/")


def _without_password(text: str) -> str:
    """What may be shown of text that should be a URL."""
    return re.sub(r"//.*@", "//…@", text)


def default_db(platform: str, environ: Mapping[str, str]) -> Path:
    """Where the database is unless told: `toki.db` in the user's state directory of `platform` (sys.platform).

    An XDG_STATE_HOME that is not absolute is ignored, as the XDG Base Directory Specification asks.
    """
    if platform == "win32":
        state = Path(environ.get("LOCALAPPDATA") or _home() / "AppData" / "Local")
    elif platform == "darwin":
        state = _home() / "Library" / "Application Support"
    else:
        given = Path(environ.get("XDG_STATE_HOME", ""))
        state = given if given.is_absolute() else _home() / ".local" / "state"
    return state / "toki" / "toki.db"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise ValueError("toki_db='': there is no home directory to put a database in; name a file") from error


def _url(name: str, value: str) -> str:
    try:
        return "".join(server_url(value))
    except ValueError as error:
        raise ValueError(f"{name}={_without_password(value)!r}: must be {URL_FORM}") from error


def _mode(name: str, value: str) -> Mode:
    try:
        return Mode(value)
    except ValueError as error:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(Mode)}") from error


def _isolate(name: str, value: str) -> Isolate:
    try:
        return Isolate(value)
    except ValueError as error:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(Isolate)}") from error


def _at_least(name: str, value: int, least: int) -> int:
    if value < least:
        raise ValueError(f"{name}={value}: must be a whole number of at least {least}")
    return value


def _token(name: str, value: str) -> str:
    if not _TOKEN.fullmatch(value):
        raise ValueError(f"{name}: must be printable ASCII without white space")  # never the value itself
    return value


def _command_line(name: str, value: str) -> str:
    try:
        shlex.split(value)
    except ValueError as error:
        raise ValueError(f"{name}={value!r}: must be flags as a shell reads them ({error})") from error
    return value


def _file(name: str, value: str) -> Path:
    try:
        path = Path(value).expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(f"{name}={value!r}: must be a path; ~ can only stand for a user who has a home") from error
    if path.is_dir():
        raise ValueError(f"{name}={value!r}: must be a file; this is a directory")
    return path
