"""What is good, and what could be better, about how a llama-server is run: from facts to findings, purely.

Facts are what could be read and measured (examine.py, probes.py). What decides reuse is said by the engine's Rules, as
the server's flags or its behaviour tell them. A finding names what was seen, what it costs, and the flag that would
change it. Of flags that were not measured here to be better, none is put into the better command.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from enum import StrEnum

from toki.engine.rules import UNLIMITED
from toki.engine.rules import Known
from toki.engine.rules import Rules
from toki.engine.rules import hypotheses
from toki.flags import ServerFlags
from toki.flags import changed
from toki.gguf import Header
from toki.gguf import entry_size
from toki.inspect.probes import Probed
from toki.inspect.records import Checked
from toki.inspect.records import WorkingSet
from toki.printable import printable
from toki.server import Props

MIB = 2**20
SLOTS = 4  # in the better command, where more are not known to be needed
MOST_SLOTS = 8
ROOMY = 32_768  # tokens of context that a coding agent's conversation takes, where none was recorded
AGENT_CONTEXT = 16_384  # tokens that its first few requests take
LEAST_CONTEXT = 4096  # tokens that any longer chat takes
NODE_S = 300  # after so long without a byte Node's fetch gives up
UNTOLD = {"unified": "whether its slots share one KV cache", "idle_save": "whether idle slots are saved to RAM"}
SECRETS = ("--api-key", "-hft", "--hf-token")  # flags whose values are nobody's business


class Verdict(StrEnum):
    """The first word of the answer."""

    GOOD = "good"
    IMPROVABLE = "improvable"
    BAD = "bad"
    UNKNOWN = "unknown"


class Grade(StrEnum):
    """How much a finding matters."""

    BAD = "bad"
    BETTER = "better"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found: `what`, in a few words, `why` it matters, and the flags that would change it."""

    grade: Grade
    what: str
    why: str
    change: Mapping[str, str | bool] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.grade}: {self.what}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What could be found out about the server at `url`. None, and empty: not known.

    `trouble` says why it can't be examined: nothing is there, it is no llama-server (`toki`: but toki), it wants a key.
    """

    url: str
    trouble: str = ""
    toki: bool = False
    props: Props | None = None
    between: str = ""  # what answers in the server's place
    shows_slots: bool = True
    metrics: bool = True
    messages: bool | None = None  # whether /v1/messages is there
    reasoning_dropped: bool | None = None  # the template leaves out earlier turns' reasoning
    flags: ServerFlags | None = None
    source: str = ""  # where the flags come from, in the plural
    words: Sequence[str] = ()  # its command line behind the program's name
    environment: Mapping[str, str] = field(default_factory=dict)  # flags that it has from there
    header: Header | None = None
    known: Known = field(default_factory=Known)
    unprobed: str = ""  # why no probes were sent
    probed: Probed = field(default_factory=Probed)
    working: WorkingSet | None = None  # of the recorded traffic
    checked: Checked | None = None  # of its answers
    proxies: Sequence[str] = ()  # variables here that send a client's requests to this URL elsewhere
    memory: int | None = None  # bytes of this machine, where the server runs on it

    @property
    def rules(self) -> Rules | None:
        """How it treats its slots: as measured, else as its flags say; None where neither tells."""
        if self.probed.rules is not None and (self.flags is not None or "ram" not in self.probed.doubtful):
            return self.probed.rules
        if self.props is None or self.flags is None:
            return None
        return hypotheses(self.props.total_slots, self.props.n_ctx, self.known)[0]

    @property
    def shared(self) -> bool:
        """Whether its slots are known to share one KV cache."""
        rules, doubted = self.rules, self.flags is None and "unified" in self.probed.doubtful
        return rules is not None and rules.unified and rules.n_slots > 1 and not doubted

    @property
    def token_bytes(self) -> int | None:
        """What a token costs in the KV cache and in the RAM cache, in bytes."""
        if self.header is None:
            return None
        flags = self.flags or ServerFlags()
        size = entry_size(self.header, flags.cache_type_k or "f16", flags.cache_type_v or "f16")
        return size.token if size is not None and size.token else None

    @property
    def conversation(self) -> int | None:
        """Tokens of the longest recorded conversation."""
        return self.working.longest if self.working is not None and self.working.longest else None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer: a verdict in one sentence, findings, and the better command ("" where nothing is to be changed)."""

    verdict: Verdict
    sentence: str
    findings: Sequence[Finding] = ()
    command: str = ""

    def lines(self) -> list[str]:
        """As `toki doctor` prints it."""
        command = [self.command] if self.command else []
        lines = [f"verdict: {self.verdict} — {self.sentence}", *map(str, self.findings), *command]
        return [printable(line) for line in lines]  # a server names itself


def diagnose(facts: Facts) -> Diagnosis:
    """The findings of `facts` and what follows from them."""
    if facts.trouble or facts.props is None:
        start = f"llama-server -m MODEL.gguf -c {SLOTS * ROOMY} -np {SLOTS} --cache-ram 8192"
        return Diagnosis(Verdict.UNKNOWN, facts.trouble, command="" if facts.toki else start)
    found = [finding for check in CHECKS for finding in check(facts)]
    found.sort(key=lambda finding: list(Grade).index(finding.grade))
    if facts.rules is None:
        why = facts.unprobed or facts.probed.trouble or "their outcomes contradict each other"
        return Diagnosis(
            Verdict.UNKNOWN,
            f"a llama-server whose flags can't be read, and probes do not tell: {why}",
            found,
            _command(facts, {"parallel": str(SLOTS), "ctx": str(SLOTS * min(facts.props.n_ctx, ROOMY))}),
        )
    wrong = [finding for finding in found if finding.grade is not Grade.NOTE]
    if not wrong:
        return Diagnosis(Verdict.GOOD, "what slots hold is kept, and the RAM cache brings back what they lose", found)
    verdict = Verdict.BAD if wrong[0].grade is Grade.BAD else Verdict.IMPROVABLE
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    change = {name: value for finding in reversed(wrong) for name, value in finding.change.items()}
    return Diagnosis(verdict, f"{wrong[0].what}{more}", found, _command(facts, change))


def _command(facts: Facts, change: Mapping[str, str | bool]) -> str:
    """The server's own command line with these changes; without the secrets in it."""
    model = facts.props.model if facts.props is not None else ""
    words = list(facts.words) or ["-m", model or "MODEL.gguf"]
    for number, word in enumerate(words[:-1]):
        if word in SECRETS:
            words[number + 1] = "SECRET"
    return " ".join([*map(_assigned, facts.environment.items()), "llama-server", *map(_quoted, changed(words, change))])


def _assigned(variable: tuple[str, str]) -> str:
    name, value = variable
    return f"{name}={_quoted(value)}"


def _quoted(word: str) -> str:
    """A word as a shell reads it, in one line: a template among the flags may have many (bash, zsh and ksh read it)."""
    if word.isprintable():
        return shlex.quote(word)
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    escaped = (one if one.isprintable() else "".join(f"\\x{byte:02x}" for byte in one.encode()) for one in plain)
    return f"$'{''.join(escaped)}'"


# --- checks: each yields what it has to say ---------------------------------------------------------


def what_it_is(facts: Facts) -> Iterator[Finding]:
    props, header = facts.props, facts.header
    assert props is not None
    slots = "1 slot" if props.total_slots == 1 else f"{props.total_slots} slots"
    said = [f"{slots}, {props.n_ctx:,} tokens of context each{' at most (shared)' if facts.shared else ''}"]
    if header is not None:
        said.append(f"a model of architecture {header.architecture} with {_attention(header)}")
    said.append(f"known from {facts.source}" if facts.flags is not None else "its flags can't be read from here")
    probed = facts.probed
    if probed.sent:
        speed = f", {probed.speed:,.0f} prompt tokens per second" if probed.speed else ""
        said.append(f"{probed.sent} probes, {probed.wrong} of their outcomes unexpected{speed}")
    else:
        said.append(f"no probes: {facts.unprobed}")
    doubts = [name for name in UNTOLD if name in probed.doubtful] if facts.flags is None else []
    if doubts:
        said.append(f"not known: {' and '.join(UNTOLD[name] for name in doubts)}")
    if facts.working is not None:
        said.append(f"{facts.working.requests:,} recorded requests")
    if probed.trouble:
        said.append(f"probing ended early: {probed.trouble}")
    yield Finding(Grade.NOTE, f"llama-server {props.build}".rstrip(), "; ".join(said))


def _attention(header: Header) -> str:
    if header.recurrent:
        return "recurrent layers"
    if header.window is None:
        return "attention of an unknown kind"
    return f"a sliding window of {header.window:,} tokens" if header.window else "full attention"


def not_as_said(facts: Facts) -> Iterator[Finding]:
    props, rules, probed = facts.props, facts.probed.rules, facts.probed
    if props is None or rules is None or facts.flags is None:
        return
    said = hypotheses(props.total_slots, props.n_ctx, facts.known)[0]
    other = [one.name for one in fields(Rules) if getattr(said, one.name) != getattr(rules, one.name)]
    if other:
        names = ", ".join(name for name in other if name not in probed.doubtful) or ", ".join(other)
        yield Finding(Grade.NOTE, "it behaves other than its flags say", f"as to {names}; what was measured counts")


def idle_clearing(facts: Facts) -> Iterator[Finding]:
    rules, cleared, back = facts.rules, facts.probed.cleared, facts.probed.back
    if rules is None or not (rules.clears and rules.n_slots > 1):
        return
    seen = ""
    if cleared:
        seen = " (measured: a slot was empty after the next request"
        seen += f", and {back.reused:,} of {back.shared:,} tokens came back from RAM)" if back is not None else ")"
    yield Finding(
        Grade.BETTER,
        "every request clears the other idle slots",
        "the slots share one KV cache (--kv-unified, --cache-idle-slots), so that each return to a conversation is a "
        f"load from RAM{seen}, and requests that run beside each other meet empty slots; with an explicit -np each "
        f"slot keeps what it holds{_price(facts)}",
        _split_slots(facts),
    )


def _split_slots(facts: Facts) -> dict[str, str | bool]:
    """Slots of their own, each with room for a conversation, and with the present context in all where that does."""
    assert facts.props is not None
    working = facts.working.conversations if facts.working is not None else 0
    number = min(max(working, SLOTS), MOST_SLOTS)
    wanted = facts.conversation * 5 // 4 if facts.conversation else min(facts.props.n_ctx, ROOMY)
    total = max(_cells(facts), number * -(-wanted // 1024) * 1024)
    return {"parallel": str(number), "kv_unified": False, "ctx": str(total)}


def _cells(facts: Facts) -> int:
    """Tokens that the whole KV cache has room for."""
    assert facts.props is not None
    return facts.props.n_ctx * (1 if facts.shared else facts.props.total_slots)


def _price(facts: Facts) -> str:
    """What slots of their own cost, in words; "" where they cost nothing, or where that is not known."""
    assert facts.props is not None
    change, token, price = _split_slots(facts), facts.token_bytes, ""
    now, then, each = _cells(facts), int(change["ctx"]), int(change["ctx"]) // int(change["parallel"])
    if then > now and token is not None:
        price += f", in a KV cache of {then * token // MIB:,} MiB instead of {now * token // MIB:,}"
    if each < facts.props.n_ctx:
        price += f"; a conversation may then have {each:,} tokens instead of {facts.props.n_ctx:,}, or give a larger -c"
    return price


def no_ram_cache(facts: Facts) -> Iterator[Finding]:
    rules, back = facts.rules, facts.probed.back
    if rules is None or rules.ram:
        return
    seen = f" (measured: {back.reused:,} of {back.shared:,} tokens came back)" if back is not None else ""
    change = _split_slots(facts) if facts.shared else {}  # with a RAM cache, shared slots would be cleared
    yield Finding(
        Grade.BAD,
        "no RAM cache",
        f"a conversation whose slot another one took is evaluated from its first token again{seen}",
        {**change, "cache_ram_mib": str(_ram_needed(facts) or 8192)},
    )


def ram_size(facts: Facts) -> Iterator[Finding]:
    """Against one conversation, and against all of them."""
    ram, token, working, props = facts.known.ram, facts.token_bytes, facts.working, facts.props
    if not ram or facts.known.ram is None or token is None or props is None or ram >= UNLIMITED:
        return
    room = f"holds {ram:,} tokens of this model ({token:,} bytes each)"
    needed = _ram_needed(facts)
    change: dict[str, str | bool] = {"cache_ram_mib": str(needed)} if needed else {}
    lost = "is never stored there, and lost with its slot"
    if facts.conversation is not None and facts.conversation > ram:
        why = f"it {room}; the longest recorded conversation has {facts.conversation:,} and {lost}"
        yield Finding(Grade.BAD, "the RAM cache is smaller than one conversation", why, change)
    elif working is not None and working.tokens > ram:
        why = f"it {room}; the {working.conversations} conversations that were returned to have {working.tokens:,}"
        yield Finding(Grade.BETTER, "the RAM cache is smaller than the conversations in use", why, change)
    elif props.n_ctx > ram and facts.conversation is None:
        why = f"it {room}; a conversation may have {props.n_ctx:,}, and a longer one than fits {lost}"
        yield Finding(Grade.BETTER, "the RAM cache is smaller than one full context", why, change)
    else:
        yield Finding(Grade.NOTE, "RAM cache", f"it {room}")


def _ram_needed(facts: Facts) -> int | None:
    """MiB that hold twice the conversations in use, or two full contexts; within half of this machine's memory."""
    token, working, props = facts.token_bytes, facts.working, facts.props
    if token is None or props is None:
        return None
    tokens = max(working.tokens, working.longest) if working is not None and working.longest else props.n_ctx
    wanted = max(8192, -(-2 * tokens * token // (1024 * MIB)) * 1024)
    if facts.memory is not None:
        wanted = min(wanted, max(facts.memory // MIB // 2 // 1024 * 1024, 1024))
    return wanted if facts.known.ram is None or wanted * MIB // token > facts.known.ram else None


def one_slot(facts: Facts) -> Iterator[Finding]:
    rules = facts.rules
    if rules is None or rules.n_slots > 1:
        return
    if facts.working is not None and facts.working.longest and not facts.working.conversations:
        yield Finding(Grade.NOTE, "one slot", "enough for the one conversation at a time that was recorded")
        return
    why = "requests wait for each other, and each title or side request drives the conversation out of it"
    if rules.ram:
        why += " to RAM and back"
    why += f"; more slots keep both{_price(facts)}"
    yield Finding(Grade.BETTER, "a single slot", why, _split_slots(facts))


def context(facts: Facts) -> Iterator[Finding]:
    props, longest, rules = facts.props, facts.conversation, facts.rules
    assert props is not None
    wanted = ROOMY if longest is None else -(-longest * 5 // 4 // 1024) * 1024
    change: dict[str, str | bool] = {"ctx": str(wanted if facts.shared else props.total_slots * wanted)}
    if rules is not None and (rules.clears or rules.n_slots == 1):  # which asks for other slots
        change = {"ctx": str(int(_split_slots(facts)["parallel"]) * wanted)}
    if longest is not None and longest >= props.n_ctx:
        why = f"{props.n_ctx:,} tokens, and the longest recorded conversation has {longest:,}: it is refused or cut"
        yield Finding(Grade.BAD, "the context of a slot is too small", why, change)
    elif longest is None and props.n_ctx < LEAST_CONTEXT:
        yield Finding(Grade.BETTER, "little context for each slot", f"{props.n_ctx:,} tokens", change)
    elif longest is None and props.n_ctx < AGENT_CONTEXT:
        why = f"{props.n_ctx:,} tokens; the first request of one alone has 10,000 to 25,000"
        yield Finding(Grade.NOTE, "little context for coding agents", why)


def slots_for_conversations(facts: Facts) -> Iterator[Finding]:
    rules, working = facts.rules, facts.working
    if rules is None or working is None or not 1 < rules.n_slots < working.conversations or rules.clears:
        return
    why = f"{working.conversations} recorded conversations were returned to, and {rules.n_slots} slots are there"
    if rules.ram:
        yield Finding(Grade.NOTE, "more conversations than slots", f"{why}; the others wait in the RAM cache")
    elif rules.n_slots < MOST_SLOTS:
        yield Finding(Grade.BETTER, "more conversations than slots", why, _split_slots(facts))


def going_back(facts: Facts) -> Iterator[Finding]:
    """Models that can't go back to any token."""
    header, flags, branch = facts.header, facts.flags or ServerFlags(), facts.probed.branch
    seen = ""
    if branch is not None:
        seen = f" (measured: of {branch.shared:,} shared tokens {branch.reused:,} were reused)"
    if header is not None and header.recurrent:
        why = f"a prompt that leaves its history before the last checkpoint is evaluated from the start{seen}"
        yield Finding(Grade.NOTE, "recurrent layers can't go back", f"{why}; keep the history append-only")
    elif header is not None and header.window and not flags.swa_full:
        why = f"a prompt that leaves its history further back than that goes back to a checkpoint{seen}"
        yield Finding(Grade.NOTE, "a sliding-window model", f"{why}; --swa-full keeps all, in much more memory")
    elif branch is not None and not branch.whole:
        why = f"a prompt that leaves its history is evaluated from a checkpoint or from the start{seen}"
        yield Finding(Grade.NOTE, "a model that can't go back to any token", why)
    limited = header is not None and (header.recurrent or (bool(header.window) and not flags.swa_full))
    if limited and flags.ctx_checkpoints == 0:
        why = "without them each step back is an evaluation from the start"
        yield Finding(Grade.BAD, "no checkpoints", why, {"ctx_checkpoints": "32"})


def similarity(facts: Facts) -> Iterator[Finding]:
    rules = facts.rules
    if rules is None or ("sps" in facts.probed.doubtful and facts.flags is None):
        return
    if rules.sps == 0:
        why = "with -sps 0 no slot is chosen for what it holds, only the one that was idle longest"
        yield Finding(Grade.BETTER, "slots are not chosen by their contents", why, {"slot_prompt_similarity": "0.1"})
    elif rules.sps > 0.25:
        why = f"with -sps {rules.sps:g} a prompt that shares less than that with a slot takes the one idle longest"
        yield Finding(Grade.BETTER, "a high slot similarity", why, {"slot_prompt_similarity": "0.1"})


def prompt_cache(facts: Facts) -> Iterator[Finding]:
    flags = facts.flags or ServerFlags()
    if flags.cache_prompt is False:
        why = "--no-cache-prompt makes every request evaluate its whole prompt, unless its body says otherwise"
        yield Finding(Grade.BAD, "the prompt cache is off", why, {"cache_prompt": True})


def not_modelled(facts: Facts) -> Iterator[Finding]:
    flags = facts.flags or ServerFlags()
    if flags.cache_reuse:
        why = "--cache-reuse shifts parts of old prompts, which changes answers; toki does not model it and lets pass"
        yield Finding(Grade.BETTER, "shifted prompt parts", why, {"cache_reuse": "0"})
    if flags.context_shift:
        why = "--context-shift drops the middle of a conversation once it is full, and all behind is evaluated anew"
        yield Finding(Grade.BETTER, "context shift", why, {"context_shift": False})
    if flags.draft_model or flags.draft_repo or flags.spec_type:
        why = "what it leaves in a slot is not modelled, so toki may predict less well and steer less"
        yield Finding(Grade.NOTE, "speculative decoding", why)


def endpoints(facts: Facts) -> Iterator[Finding]:
    if not facts.shows_slots:
        why = "where it is off nothing is steered while requests run beside each other, and no probes can be sent"
        yield Finding(Grade.BETTER, "/slots is not shown", why, {"slots": True})
    if not facts.metrics:
        yield Finding(Grade.NOTE, "/metrics is off", "with --metrics the server counts its evaluated tokens itself")
    honoured = facts.probed.messages_slot
    if facts.messages and honoured is not None:
        why = "it honours id_slot" if honoured else "it ignores id_slot: for its clients only primers help"
        yield Finding(Grade.NOTE, "/v1/messages", why)
    elif facts.messages is False:
        yield Finding(Grade.NOTE, "no /v1/messages", "clients of Anthropic's API need a newer build")


def images(facts: Facts) -> Iterator[Finding]:
    assert facts.props is not None
    media = [name for name, on in facts.props.modalities.items() if on]
    if media:
        why = (
            f"prompts may hold {' or '.join(media)}: each counts whole or not at all, so another file in its place "
            "ends the reuse there; one that the server has to fetch itself has a length that toki does not know, and "
            "its prompt passes; --cache-reuse and --context-shift do nothing with a projector"
        )
        yield Finding(Grade.NOTE, "a multimodal projector", why)


def reasoning(facts: Facts) -> Iterator[Finding]:
    if not facts.reasoning_dropped:
        return
    preserved = (facts.flags or ServerFlags()).reasoning_preserve
    why = "all behind the first reasoning that was dropped is evaluated again with each new user message"
    if preserved:
        why += "; --reasoning-preserve is given, but this template can't"
        yield Finding(Grade.NOTE, "the template drops earlier reasoning", why)
    else:
        why += "; --reasoning-preserve keeps it where the template can, and where the client sends it back"
        yield Finding(Grade.BETTER, "the template drops earlier reasoning", why, {"reasoning_preserve": True})


def busy_slots(facts: Facts) -> Iterator[Finding]:
    rules, pinned = facts.rules, facts.probed.pinned
    if rules is None or not rules.risky_pins:
        return
    if pinned is not None and not pinned.whole:
        why = "a pinned prompt does not look in the RAM cache (an older build), so that a swap fetches nothing there"
        yield Finding(Grade.NOTE, "pins pass by the RAM cache", why)
        return
    seen = " (measured: a pinned prompt fetched its conversation from RAM)" if pinned is not None else ""
    why = f"it loads from RAM into it before it looks whether it runs{seen}; toki never pins there, other clients may"
    yield Finding(Grade.NOTE, "id_slot of a busy slot can damage the answer that runs there", why)


def answers(facts: Facts) -> Iterator[Finding]:
    """What toki_verify found. A note: no flag is known that would change it."""
    checked = facts.checked
    if checked is not None and checked.substantive:
        yield Finding(
            Grade.NOTE,
            "answers say something else without its cache",
            f"{checked.substantive:,} of {checked.answers:,} that were asked for again, that of request "
            f"{checked.latest} last; rounding does that where two tokens were nearly tied, but so does a fault of the "
            'cache: look at such answers with and without "cache_prompt": false',
        )


def time_outs(facts: Facts) -> Iterator[Finding]:
    speed, props = facts.probed.speed, facts.props
    assert props is not None
    length = min(facts.conversation or props.n_ctx, props.n_ctx)
    if speed is None or length / speed < NODE_S:
        return
    why = (
        f"at {speed:,.0f} tokens per second {length:,} tokens take {length / speed:,.0f} s without an answer's first "
        f"byte; Node's fetch gives up after {NODE_S} s, then the client sends the prompt again: raise its time-out, or "
        f"stream through toki with toki_ping_s=30"
    )
    yield Finding(Grade.NOTE, f"prompts of more than {NODE_S * speed:,.0f} tokens may run into client time-outs", why)


def proxies(facts: Facts) -> Iterator[Finding]:
    if facts.proxies:
        names = ", ".join(facts.proxies)
        why = f"clients that read it send their requests for {facts.url} there: add its host to NO_PROXY"
        yield Finding(Grade.NOTE, f"{names} is set here", why)


def something_between(facts: Facts) -> Iterator[Finding]:
    if facts.between:
        why = "another program answers for llama-server; toki must see all requests of the server: place it behind that"
        yield Finding(Grade.NOTE, f"answers come through {facts.between}", why)


def sleeping(facts: Facts) -> Iterator[Finding]:
    if facts.props is not None and facts.props.is_sleeping:
        yield Finding(Grade.NOTE, "it sleeps", "slots and RAM cache were emptied when it fell asleep")


def steering(facts: Facts) -> Iterator[Finding]:
    """Whether toki helps there, and why."""
    rules, header = facts.rules, facts.header
    if rules is None:
        return
    if header is not None and header.recurrent:
        helps, why = "no", "models with recurrent layers are not modelled, so its predictions fail and requests pass"
    elif facts.probed.sent and facts.probed.wrong > max(1, facts.probed.sent // 5):
        helps, why = "little", "the outcome of too many probes was unexpected; toki steers only what it can predict"
    elif rules.ram and rules.sps:
        helps = "yes"
        why = (
            "where conversations share a beginning or side requests come between, the server's own choice leaves their "
            "RAM copies unused, and a swap fetches them; one growing chat needs no help"
        )
    elif rules.n_slots > 1 and rules.sps:
        helps = "some"
        why = "it keeps conversations that share a beginning in slots of their own; what lost its slot is lost"
    else:
        helps, why = "no", "with these flags there is nothing to choose, or nothing kept that a choice could find"
    yield Finding(Grade.NOTE, f"does steering help: {helps}", why)


CHECKS: Sequence[Callable[[Facts], Iterator[Finding]]] = (
    what_it_is,
    not_as_said,
    no_ram_cache,
    ram_size,
    context,
    prompt_cache,
    idle_clearing,
    one_slot,
    slots_for_conversations,
    similarity,
    going_back,
    reasoning,
    not_modelled,
    endpoints,
    images,
    busy_slots,
    answers,
    time_outs,
    proxies,
    something_between,
    sleeping,
    steering,
)
