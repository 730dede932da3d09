"""The options as mitmproxy itself takes them, and what becomes of good and bad values."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy import exceptions
from mitmproxy.addonmanager import Loader
from mitmproxy.test import taddons

from toki.engine.events import Mode
from toki.settings import OPTIONS
from toki.settings import Isolate
from toki.settings import Settings
from toki.settings import add_options
from toki.settings import check_deferred
from toki.settings import default_db
from toki.settings import from_options
from toki.settings import server_url

pytestmark = pytest.mark.proxy

MUST_BE_URL = "must be http(s)://host[:port][/prefix]"


class Addon:
    def load(self, loader: Loader) -> None:
        add_options(loader)


@pytest.fixture
async def context() -> AsyncIterator[taddons.context]:
    with taddons.context(Addon()) as context:  # type: ignore[no-untyped-call]
        yield context


def given_options(context: taddons.context, *specs: str) -> Settings:
    """The settings after `--set` of each of `specs`."""
    context.options.set(*specs)
    return from_options(context.options)


def test_names_types_and_defaults() -> None:
    assert [(option.name, option.type_text, option.default_text) for option in OPTIONS] == [
        ("toki_server", "seq[str]", "[]"),
        ("toki_mode", "auto, observe, pin, off", "auto"),
        ("toki_min_reuse", "int", "10"),
        ("toki_db", "str", "user state directory"),
        ("toki_embed_url", "str", '""'),
        ("toki_deadline_ms", "int", "250"),
        ("toki_keep_days", "int", "30"),
        ("toki_server_flags", "str", '""'),
        ("toki_log_events", "str", '""'),
        ("toki_isolate", "off, key", "off"),
        ("toki_ping_s", "int", "0"),
        ("toki_verify", "int", "0"),
        ("toki_text", "bool", "false"),
        ("toki_token", "str", '""'),
    ]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_help_is_one_paragraph(option: object) -> None:
    help_text = getattr(option, "help", "")
    assert help_text.endswith(".")
    assert "\n" not in help_text


def test_mitmproxy_knows_the_options_as_they_are_in_the_table(context: taddons.context) -> None:
    for option in OPTIONS:
        assert getattr(context.options, option.name) == option.default
        assert context.options.default(option.name) == option.default
    with pytest.raises(exceptions.OptionsError):
        context.options.set("toki_keep_days=soon")


def test_defaults(context: taddons.context) -> None:
    assert from_options(context.options) == Settings(
        servers=(),
        mode=Mode.AUTO,
        min_reuse=10,
        db=default_db(sys.platform, os.environ),
        embed_url="",
        deadline_ms=250,
        keep_days=30,
        server_flags="",
        log_events="",
        ping_s=0,
        verify=0,
        text=False,
        token="",
        isolate=Isolate.OFF,
    )


def test_every_option_reaches_the_settings(context: taddons.context, tmp_path: Path) -> None:
    settings = given_options(
        context,
        "toki_server=http://127.0.0.1:8080/",
        "toki_server=https://box.lan/llama/",
        "toki_mode=pin",
        "toki_min_reuse=64",
        f"toki_db={tmp_path}/rows.db",
        "toki_embed_url=http://[::1]:9090",
        "toki_deadline_ms=1",
        "toki_keep_days=1",
        "toki_server_flags=-np 4 --cache-ram 0",
        f"toki_log_events={tmp_path}/events",
        "toki_ping_s=15",
        "toki_verify=20",
        "toki_text=true",
        "toki_token=open-sesame",
        "toki_isolate=key",
    )
    assert settings == Settings(
        servers=("http://127.0.0.1:8080", "https://box.lan/llama"),
        mode=Mode.PIN,
        min_reuse=64,
        db=tmp_path / "rows.db",
        embed_url="http://[::1]:9090",
        deadline_ms=1,
        keep_days=1,
        server_flags="-np 4 --cache-ram 0",
        log_events=f"{tmp_path}/events",
        ping_s=15,
        verify=20,
        text=True,
        token="open-sesame",
        isolate=Isolate.KEY,
    )
    assert "sesame" not in repr(settings)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("toki_mode=fast", "toki_mode='fast': must be one of auto, observe, pin, off"),
        ("toki_mode=", "toki_mode='': must be one of auto, observe, pin, off"),
        ("toki_isolate=yes", "toki_isolate='yes': must be one of off, key"),
        ("toki_min_reuse=0", "toki_min_reuse=0: must be a whole number of at least 1"),
        ("toki_deadline_ms=-250", "toki_deadline_ms=-250: must be a whole number of at least 1"),
        ("toki_keep_days=0", "toki_keep_days=0: must be a whole number of at least 1"),
        ("toki_verify=-1", "toki_verify=-1: must be a whole number of at least 0"),
        ("toki_ping_s=-1", "toki_ping_s=-1: must be a whole number of at least 0"),
        ("toki_server=localhost:8080", f"toki_server='localhost:8080': {MUST_BE_URL}"),
        ("toki_server=", f"toki_server='': {MUST_BE_URL}"),
        ("toki_embed_url=ftp://host", f"toki_embed_url='ftp://host': {MUST_BE_URL}"),
        ("toki_db=/", "toki_db='/': must be a file; this is a directory"),
        ("toki_log_events=/", "toki_log_events='/': must be a file; this is a directory"),
        ("toki_db=~nobody-of-this-name/toki.db", "toki_db='~nobody-of-this-name/toki.db': must be a path"),
        ("toki_log_events=~nobody-of-this-name/e", "toki_log_events='~nobody-of-this-name/e': must be a path"),
        ("toki_server_flags=--alias 'a", 'toki_server_flags="--alias \'a": must be flags as a shell reads them'),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(context: taddons.context, spec: str, complaint: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        given_options(context, spec)
    assert str(caught.value).startswith(complaint)


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_keys_cannot_be_kept_apart_where_no_request_is_changed(context: taddons.context, mode: str) -> None:
    with pytest.raises(ValueError, match=f"toki_isolate=key needs toki_mode auto or pin: in {mode} no request"):
        given_options(context, "toki_isolate=key", f"toki_mode={mode}")


@pytest.mark.parametrize(
    ("url", "origin", "prefix"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080", ""),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080", ""),
        ("HTTPS://box.lan", "HTTPS://box.lan", ""),
        ("http://[fe80::1]:1/a/b/", "http://[fe80::1]:1", "/a/b"),
        ("http://host:65535/llama", "http://host:65535", "/llama"),
    ],
)
def test_urls(url: str, origin: str, prefix: str) -> None:
    assert server_url(url) == (origin, prefix)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://",
            "http:///v1",
            "http://:8080",
            "//host",
            "host",
            "http://host:",
            "http://host:0",
            "http://host:65536",
        ),
        *("http://host:8080:1", "http://host:port", "http://user:secret@host", "http://host?x=1", "http://host/#a"),
        *(
            "http://ho st",
            "http://host/a b",
            "http://host\n",
            " http://host",
            "http://::1",
            "http://[::1",
            "http://[host]",
        ),
        *("http://host:٣", "reverse:http://host", "unix:///run/llama.sock"),
    ],
)
def test_no_urls(url: str) -> None:
    with pytest.raises(ValueError, match=r"not of the form http\(s\)://host"):
        server_url(url)


@given(st.text(max_size=30) | st.text("htps:/.[]@?#01ab \n", max_size=30).map("http://".__add__))
def test_any_text_is_a_url_or_a_clear_error(text: str) -> None:
    try:
        origin, prefix = server_url(text)
    except ValueError as error:
        assert "http(s)://host[:port][/prefix]" in str(error)  # noqa: PT017 - both ends are fine
    else:
        assert text.rstrip("/") == (origin + prefix).rstrip("/")
        assert not prefix.endswith("/")


def test_home_is_expanded_and_paths_are_absolute(
    context: taddons.context, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    settings = given_options(context, "toki_db=~/rows.db", "toki_log_events=events")
    assert settings.db == tmp_path / "rows.db"
    assert settings.log_events == str(tmp_path / "events")


@pytest.mark.parametrize(
    ("platform", "environ", "expected"),
    [
        ("linux", {"XDG_STATE_HOME": "/state"}, "/state/toki/toki.db"),
        ("linux", {"XDG_STATE_HOME": "not/absolute"}, "/home/me/.local/state/toki/toki.db"),
        ("linux", {"XDG_STATE_HOME": ""}, "/home/me/.local/state/toki/toki.db"),
        ("freebsd14", {}, "/home/me/.local/state/toki/toki.db"),
        ("darwin", {"XDG_STATE_HOME": "/state"}, "/home/me/Library/Application Support/toki/toki.db"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/toki/toki.db"),
        ("win32", {}, "/home/me/AppData/Local/toki/toki.db"),
    ],
)
def test_user_state_directory(
    monkeypatch: pytest.MonkeyPatch, platform: str, environ: dict[str, str], expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert default_db(platform, environ) == Path(expected)


def test_without_a_home_a_file_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(ValueError, match="toki_db='': there is no home directory"):
        default_db("linux", {})
    assert default_db("linux", {"XDG_STATE_HOME": "/state"}) == Path("/state/toki/toki.db")


def test_a_number_that_is_none_is_refused_before_mitmproxy_drops_it() -> None:
    check_deferred({"toki_min_reuse": ["12"], "toki_mode": ["whatever"], "other": ["x"]})
    with pytest.raises(ValueError, match="toki_keep_days='soon': must be a whole number"):
        check_deferred({"toki_keep_days": ["soon"]})
    check_deferred({"toki_text": ["true"]})
    with pytest.raises(ValueError, match="toki_text='yes': must be true or false"):
        check_deferred({"toki_text": ["yes"]})


def test_a_password_in_a_url_is_not_shown() -> None:
    with pytest.raises(ValueError, match="not of the form") as caught:
        server_url("http://user:secret@host:1")
    assert "secret" not in str(caught.value)
