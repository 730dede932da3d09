"""Gathers the facts about a llama-server that the doctor judges: what it shows, its process, and probes if allowed."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from collections.abc import Mapping
from contextlib import closing
from contextlib import suppress
from time import monotonic
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from requests.utils import should_bypass_proxies

from toki import facts
from toki.flags import ServerFlags
from toki.flags import command_line
from toki.flags import environment
from toki.flags import local_process
from toki.flags import parse_flags
from toki.flags import process_flags
from toki.inspect.doctor import Facts
from toki.inspect.probes import Probed
from toki.inspect.probes import cost
from toki.inspect.probes import probe
from toki.inspect.records import WorkingSet
from toki.server import MISSING
from toki.server import Auth
from toki.server import LlamaServerBackend
from toki.server import Props
from toki.server import ServerError

BUDGET_S = 36.0  # for everything but the answer to the question
TIMEOUT = 5.0  # seconds that one look may take
KEY_VARIABLE = "LLAMA_API_KEY"  # the one that llama-server itself reads
MOST_NAME = 40  # characters of what a server calls itself
MARK = "tidewater"  # a word of reasoning that is looked for in a rendered prompt


def examine(url: str, model: str, working: WorkingSet | None, allowed: Callable[[str], bool]) -> Facts:
    """Everything that can be found out about the server at `url` (`model`: about that one behind a router).

    `allowed` is asked, with what they cost, before any probes are sent. `working`: what its recorded traffic needs.
    Takes BUDGET_S seconds at most, beside the time that `allowed` takes. Never raises.
    """
    auth = Auth(authorization=f"Bearer {key}" if (key := os.environ.get(KEY_VARIABLE)) else None)
    backend = LlamaServerBackend(url)
    try:
        return _examine(backend, url, model, working, auth, allowed)
    except ServerError as error:
        return Facts(url=url, trouble=f"{url} stopped answering ({error})")
    finally:
        backend.close()


def _examine(
    backend: LlamaServerBackend,
    url: str,
    model: str,
    working: WorkingSet | None,
    auth: Auth,
    allowed: Callable[[str], bool],
) -> Facts:
    begun = monotonic()
    behind = _behind_toki(url, auth)
    if behind is not None:
        ask = f", which looks after {', '.join(behind)}: ask toki doctor {behind[0]}" if behind else ""
        return Facts(url=url, toki=True, trouble=f"what answers at {url} is toki itself{ask or ': ask its server'}")
    try:
        props = backend.props(auth, TIMEOUT)
        model = (model or _only_model(backend, auth)) if props.router else ""
        if model:
            props = backend.props(auth, TIMEOUT, model)
    except ServerError as error:
        return Facts(url=url, trouble=_trouble(backend, url, error, auth))
    except _Unclear as error:
        return Facts(url=url, trouble=str(error))
    process = local_process(url)
    words: tuple[str, ...] = ()
    set_before: dict[str, str] = {}
    flags: ServerFlags | None = None
    source = ""
    if model:
        words = backend.arguments(auth, TIMEOUT, model)[1:]
        flags, source = (parse_flags(words, {}), "the flags that the router names") if words else (None, "")
    elif process is not None:
        words, flags, source = tuple(command_line(process)), process_flags(process), "the flags of its process"
        set_before = environment(process)
    header = facts.model_header(url, process, props.model)
    known = facts.known(props, flags, header)
    shows_slots, busy = _slots(backend, auth, props, model)
    metrics, between = _has_metrics(backend, auth, model), _between(backend, auth, model)
    messages = None if props.is_sleeping else _has_messages(backend, auth, model)
    drops = None if props.is_sleeping else _drops_reasoning(backend, auth, props, model)
    unprobed = _unprobeable(props, model, shows_slots, busy)
    left = BUDGET_S - (monotonic() - begun)
    probed = Probed()
    if not unprobed:
        if allowed(cost(props)):
            seed = random.SystemRandom().randrange(2**32)
            probed = probe(backend, props, known, auth, monotonic() + left, bool(messages), seed)
        else:
            unprobed = "they were not allowed"
    return Facts(
        url=url,
        props=props,
        shows_slots=shows_slots,
        metrics=metrics,
        between=between,
        messages=messages,
        reasoning_dropped=drops,
        flags=flags,
        source=source,
        words=words,
        environment=set_before,
        header=header,
        known=known,
        unprobed=unprobed,
        probed=probed,
        working=working,
        proxies=_proxies(url),
        memory=_memory() if process is not None else None,
    )


def _behind_toki(url: str, auth: Auth) -> tuple[str, ...] | None:
    """The servers behind the toki at `url`; None where it is no toki."""
    address = urlsplit(url)
    backend = LlamaServerBackend(f"{address.scheme}://{address.netloc}")
    with closing(backend), suppress(ServerError):
        return backend.looked_after(auth, TIMEOUT)
    return None


class _Unclear(Exception):
    """Why it can't be said what is to be examined."""


def _only_model(backend: LlamaServerBackend, auth: Auth) -> str:
    """The one model that a router has loaded."""
    loaded = []
    for entry in backend.models(auth, TIMEOUT):
        status = entry.get("status")
        if isinstance(status, Mapping) and status.get("value") == "loaded":
            loaded.append(str(entry.get("id")))
    if len(loaded) != 1:
        names = ", ".join(sorted(loaded)) or "none"
        raise _Unclear(f"a llama-server router: name one of its loaded models with --model ({names})")
    return loaded[0]


def _trouble(backend: LlamaServerBackend, url: str, error: ServerError, auth: Auth) -> str:
    """Why there is no /props."""
    if error.status is None:
        return f"nothing answers at {url} ({error})"
    if error.status in (401, 403):
        return f"the server at {url} wants a key: put it into the environment variable {KEY_VARIABLE}"
    if error.status == 503:
        return f"the llama-server at {url} still loads its model"
    kind = ""
    with suppress(ServerError):
        _, headers = backend.greeting("/", auth, TIMEOUT)
        kind = headers.get("Server", "")
    called = f", which calls itself {kind[:MOST_NAME]!r}," if kind else ""
    return f"what answers at {url}{called} is no llama-server ({error})"


def _slots(backend: LlamaServerBackend, auth: Auth, props: Props, model: str) -> tuple[bool, bool]:
    """Whether /slots is there, and whether one is busy. A sleeping server is not woken for that."""
    if props.is_sleeping:
        return True, False
    try:
        return True, any(slot.busy for slot in backend.slots(auth, TIMEOUT, model))
    except ServerError as error:
        if error.status in MISSING or error.status == 403:
            return False, False
        raise


def _has_metrics(backend: LlamaServerBackend, auth: Auth, model: str) -> bool:
    with suppress(ServerError):
        return backend.greeting("/metrics", auth, TIMEOUT, model)[0] == 200
    return False


def _between(backend: LlamaServerBackend, auth: Auth, model: str) -> str:
    """What answers in llama-server's name, where its headers show something else."""
    with suppress(ServerError):
        server = backend.greeting("/props", auth, TIMEOUT, model)[1].get("Server", "")
        return "" if server == "llama.cpp" else server[:MOST_NAME] or "something without a name"
    return ""


def _has_messages(backend: LlamaServerBackend, auth: Auth, model: str) -> bool | None:
    """Whether there is /v1/messages, by its endpoint that only counts; None where that does not tell."""
    body = {"model": model or "any", "messages": [{"role": "user", "content": "a"}]}
    try:
        backend.count("/v1/messages/count_tokens", json.dumps(body).encode(), auth, TIMEOUT)
    except ServerError as error:
        return False if error.status in MISSING else None
    return True


def _unprobeable(props: Props, model: str, shows_slots: bool, busy: bool) -> str:
    """Why probes are out of the question, in words; "" where they are not."""
    if model:
        return "behind a router none are sent"
    if props.is_sleeping:
        return "the server sleeps"
    if not shows_slots:
        return "/slots is off, so that nobody can tell whether it is idle"
    return "the server is busy" if busy else ""


def _drops_reasoning(backend: LlamaServerBackend, auth: Auth, props: Props, model: str) -> bool | None:
    """Whether the template leaves the reasoning of an earlier turn out; None where it has no reasoning."""
    if "reasoning_content" not in props.chat_template:
        return None
    body = {
        "model": model or "any",
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": MARK},
            {"role": "user", "content": "c"},
        ],
    }
    with suppress(ServerError):
        return MARK not in backend.apply_template(json.dumps(body).encode(), auth, TIMEOUT)
    return None


def _proxies(url: str) -> tuple[str, ...]:
    """The proxy variables of this environment that hold for requests to `url`."""
    if should_bypass_proxies(url, None):
        return ()
    set_here = getproxies_environment()
    return tuple(f"{kind}_proxy" for kind in (urlsplit(url).scheme, "all") if kind in set_here)


def _memory() -> int | None:
    """Bytes of this machine's memory."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
