"""The event log: what engines decided stands in it, replays, and shows nothing that a client wrote."""

from __future__ import annotations

import json
import logging
import random
import stat
import threading
from base64 import b64encode
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import replay as script
from replay import replay
from toki import eventlog
from toki.disguise import Disguise
from toki.engine.embedding import embed_prefix
from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Began
from toki.engine.events import Command
from toki.engine.events import Decision
from toki.engine.events import Event
from toki.engine.events import Gone
from toki.engine.events import Kind
from toki.engine.events import Looked
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Prime
from toki.engine.events import Primed
from toki.engine.events import Read
from toki.engine.events import Record
from toki.engine.events import Replied
from toki.engine.events import Restarted
from toki.engine.events import Send
from toki.engine.events import SlotView
from toki.engine.rules import Known
from toki.engine.tokens import Tokens
from toki.eventlog import EventLog
from toki.eventlog import Heard
from toki.eventlog import LoggedEngine
from toki.eventlog import Made
from toki.eventlog import Scribe
from toki.eventlog import Shelf
from toki.eventlog import read

SECRET = "Mother's maiden name"  # stands wherever a client, a server or a person may have put a text
SLOTS = 4


class Life:
    """Random requests to one engine, some at once, whose server mostly reuses what was predicted."""

    def __init__(self, log: EventLog, engine: LoggedEngine, seed: int) -> None:
        self.log = log
        self.engine = engine
        self.random = random.Random(seed)
        self.at = 1000.0
        self.keys = 0
        self.conversations: list[list[int]] = []
        self.commands: list[Command] = []
        self.flying: list[Callable[[], None]] = []

    def live(self, requests: int) -> None:
        views = tuple(SlotView(number, False, 0, -1, 4096) for number in range(SLOTS))
        known = Known(unified=False, idle_save=True, sps=0.1)  # leaves two hypotheses: fewer take less time
        self.tell(Restarted(self.tick(), SLOTS, 4096, known, slots=views))
        for _ in range(requests):
            self.request()
            while self.flying and (len(self.flying) == SLOTS or self.random.random() < 0.8):
                self.flying.pop(self.random.randrange(len(self.flying)))()
            if self.random.random() < 0.1:
                held = tuple(
                    SlotView(number, False, self.random.randint(0, 9) * 50, self.keys, 4096) for number in range(SLOTS)
                )
                self.tell(Looked(self.at, self.tick(), held))
        for end in self.flying:
            end()

    def request(self) -> None:
        self.keys += 1
        key, chance = self.keys, self.random.random()
        prompt = self.prompt()
        ask = self.ask(prompt)
        unread = Ask("/completion", model=SECRET, unknown=f"{SECRET}: not read yet", lora=ask.lora)
        if chance < 0.1:
            self.tell(Arrived(key, self.tick(), unread))
            self.tell(Read(key, self.tick(), ask))
        elif chance < 0.15:
            self.tell(Arrived(key, self.tick(), replace(ask, fixed=f"{SECRET}: must not be steered")))
        else:
            self.tell(Arrived(key, self.tick(), ask))
        while isinstance(prime := self.commands[-1], Prime):
            n = len(prime.tokens)
            measured = Measured(n, n - 9, 9, 1) if n else Measured(0, 0, 0, 0, prime.id_slot % SLOTS)
            self.tell(Primed(key, self.tick(), None if n and self.random.random() < 0.2 else measured))
        predicted = next(each.decision.predicted for each in self.commands[::-1] if isinstance(each, Send))
        reused = predicted.likely if predicted and self.random.random() < 0.95 else self.random.randint(0, len(prompt))
        if ask.stream:
            self.tell(Began(key, self.tick(), 200))
        self.flying.append(lambda: self.end(key, prompt, reused))

    def end(self, key: int, prompt: list[int], reused: int) -> None:
        reply = self.ids(self.random.randint(1, 30))
        measured = Measured(len(prompt), reused, len(prompt) - reused, len(reply), None, 7.25, 2.5, f"{SECRET} {reply}")
        chance = self.random.random()
        if chance < 0.1:
            self.tell(Gone(key, self.tick(), sent=True, shown=int(chance < 0.05), measured=measured))
            return
        if chance < 0.13:
            self.tell(Answered(key, self.tick(), 500, Measured()))
            return
        self.tell(Answered(key, self.tick(), 200, measured))
        if chance < 0.9:
            self.tell(Replied(key, self.tick(), np.array(reply, np.int32)))
        self.conversations.append(prompt + reply)

    def ask(self, prompt: list[int]) -> Ask:
        tokens = Tokens.of(prompt)
        ask = Ask("/v1/chat/completions", model=SECRET, tokens=tokens, stream=self.random.random() < 0.5)
        if self.random.random() < 0.05:
            ask = replace(ask, lora=SECRET)
        if self.random.random() < 0.02:  # more of them, and nothing would be trusted
            return replace(ask, tokens=None, head=tokens.head(len(tokens) // 2), unknown=SECRET)
        if self.random.random() < 0.05:
            ask = replace(ask, images=(len(tokens) // 2,))
        if self.random.random() < 0.3:
            vector = np.full(64, 0.1, np.float32)
            vector[len(prompt) % 64] = 2
            return replace(ask, vector=vector / np.float32(np.linalg.norm(vector)), semantic=True)
        return replace(ask, vector=self.log.embed(tokens))

    def prompt(self) -> list[int]:
        if not self.conversations or self.random.random() < 0.2:
            return [1, 2, *[3] * self.random.choice((10, 300)), *self.ids(100)]
        before = self.random.choice(self.conversations[-6:])
        cut = len(before) if self.random.random() < 0.8 else self.random.randrange(len(before))
        return before[:cut] + self.ids(self.random.randint(0, 200))

    def ids(self, n: int) -> list[int]:
        return [self.random.randrange(100_000, 150_000) for _ in range(n)]

    def tell(self, event: Event) -> None:
        self.commands += self.engine.handle(event)

    def tick(self) -> float:
        self.at += self.random.random()
        return self.at


def lived(path: Path, mode: Mode = Mode.AUTO, seed: int = 1, requests: int = 40) -> list[Command]:
    """Log a life; all that the engine said in it."""
    log = EventLog(path)
    life = Life(log, log.engine(mode, 10), seed)
    life.live(requests)
    log.close()
    return life.commands


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.slow
def test_a_life_replays_to_the_same_decisions(tmp_path: Path, mode: Mode) -> None:
    path = tmp_path / "events"
    commands = lived(path, mode, seed=4, requests=40)
    with path.open("rb") as file:
        replayed = replay(file)
    assert replayed.difference == ""
    assert replayed.engines == 1
    assert replayed.events == sum("event" in line for line in lines(path)) > 120
    said = [command for line in lines(path) for command in line.get("commands", ())]
    assert [each["command"] for each in said] == [type(each).__name__ for each in commands]
    steered = [each for each in commands if isinstance(each, Send) and each.decision.action is not Action.PASSED]
    assert bool(steered or any(isinstance(each, Prime) for each in commands)) == (mode in (Mode.AUTO, Mode.PIN))


def test_a_log_shows_nothing_that_a_client_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events"
    disguise = Disguise()
    monkeypatch.setattr(eventlog, "Disguise", lambda: disguise)
    commands = lived(path)
    text = path.read_text(encoding="ascii")
    assert any(isinstance(each, Send) and each.decision.reason.startswith(SECRET) for each in commands)
    assert any(isinstance(each, Record) and each.reason.startswith(SECRET) for each in commands)
    for word in SECRET.split():
        assert word not in text
    for key in (value for value in vars(disguise).values() if isinstance(value, bytes)):
        assert len(key) == 32
        assert key not in path.read_bytes()
        assert key.hex() not in text
        assert b64encode(key).decode() not in text
    events = [each.event for each in entries(path) if isinstance(each, Heard)]
    asks = [event.ask for event in events if isinstance(event, Arrived | Read)]
    seen = np.concatenate([ask.tokens.ids for ask in asks if ask.tokens is not None])
    assert len(seen) > 10_000
    assert np.isin(np.unique(seen), np.arange(150_000)).sum() < 20  # a hash is a small number by chance once in 14,000


def entries(path: Path) -> Sequence[Made | Heard]:
    with path.open("rb") as file:
        return list(read(file))


def test_a_log_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "events"
    lived(path, requests=1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_first_lines_say_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "events"
    lived(path, Mode.PIN, requests=1)
    first, second = lines(path)[:2]
    assert (first["log"], first["format"]) == ("toki events", 1)
    assert first["toki"]
    assert second == {"engine": 1, "mode": "pin", "min_reuse": 10}


def test_a_request_costs_a_few_kilobytes(tmp_path: Path) -> None:
    path = tmp_path / "events"
    log = EventLog(path)
    engine = log.engine(Mode.AUTO, 10)
    ids: list[int] = []
    for key in range(1, 51):
        ids += range(key * 1000, key * 1000 + 500)  # a chat of 25,000 tokens
        tokens = Tokens.of(ids)
        engine.handle(Arrived(key, key, Ask("/completion", tokens=tokens, vector=log.embed(tokens))))
        engine.handle(Answered(key, key + 0.5, 200, Measured(len(ids), len(ids) - 500, 500, 1)))
    log.close()
    assert path.stat().st_size < 50 * (500 * 16 / 3 + 1500)


# --- what a log may hold ---


def test_engines_and_runs_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "events"
    for run in range(2):
        log = EventLog(path)
        lives = [Life(log, log.engine(mode, 10), run) for mode in (Mode.AUTO, Mode.PIN)]
        for life in lives * 2:
            life.live(5)
        log.close()
    made = [entry for entry in entries(path) if isinstance(entry, Made)]
    assert [entry.engine for entry in made] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    with path.open("rb") as file:
        assert replay(file) == script.Replayed(4, sum("event" in line for line in lines(path)), "")


def test_a_fault_of_an_engine_is_a_fault_again(tmp_path: Path) -> None:
    path = tmp_path / "events"
    log = EventLog(path)
    engine = log.engine(Mode.AUTO, 10)
    engine.handle(Arrived(1, 1.0, Ask("/completion")))
    with pytest.raises(ValueError, match="has arrived before"):
        engine.handle(Arrived(1, 2.0, Ask("/completion")))
    log.close()
    assert lines(path)[-1] == {"engine": 1, "raised": "ValueError"}
    with path.open("rb") as file:
        assert replay(file) == script.Replayed(1, 2, "")


def test_a_run_that_was_killed_leaves_what_it_had_written(tmp_path: Path) -> None:
    path = tmp_path / "events"
    lived(path, requests=8)
    whole = len(entries(path))
    path.write_bytes(path.read_bytes()[:-30])
    assert len(entries(path)) == whole - 1
    lived(path, requests=8)
    assert len(entries(path)) == 2 * whole - 1
    with path.open("rb") as file:
        assert replay(file).difference == ""


HEAD = b'{"log":"toki events","format":1,"toki":"0"}'
MADE = b'{"engine":1,"mode":"auto","min_reuse":10}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"log":"toki events","format":2}', "line 1 .*format 2"),
        (b'{"log":"other"}', "line 1 "),
        (b'{"engine":1,"mode":"auto","min_reuse":10}', "line 1 .*no run"),
        (b"not JSON\n" + MADE, "line 2 .*no run"),
        (HEAD + b"\nnot JSON\n" + MADE, "line 3 .*no run"),
        (b"7", "line 1 "),
        (HEAD + b'\n{"engine":1,"commands":[]}', "line 2 .*never made"),
        (HEAD + b"\n" + MADE + b'\n{"engine":1,"commands":[]}', "line 3 .*answer to nothing"),
        (HEAD + b"\n" + MADE + b'\n{"engine":1,"event":"Born"}', "line 3 .*no such event: Born"),
        (HEAD + b"\n" + MADE + b'\n{"engine":1,"event":"Began","key":1}', "line 3 .*status"),
        (
            HEAD + b"\n" + MADE + b'\n{"engine":1,"event":"Read","key":1,"at":1,"ask":'
            b'{"kind":"completion","tokens":{"like":3,"shared":1,"more":""}}}',
            "line 3 .*KeyError",
        ),
    ],
)
def test_what_is_no_log_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(read(text.splitlines(keepends=True)))


@given(st.lists(st.lists(st.sampled_from([1, 2]), max_size=12), max_size=30))
def test_a_shelf_gives_back_what_was_put_on_it(lists: list[list[int]]) -> None:
    here, there = Shelf(), Shelf()
    for ids in lists:
        assert there.unpack(json.loads(json.dumps(here.pack(Tokens.of(ids))))).ids.tolist() == ids


def test_a_shelf_is_bounded_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventlog, "SHELF_LISTS", 3)
    monkeypatch.setattr(eventlog, "SHELF_TOKENS", 100)
    here, there = Shelf(), Shelf()
    shared = []
    for first in (1, 2, 3, 1, 4, 5, 1, 2, 6):
        ids = [first] * 30
        told = here.pack(Tokens.of(ids))
        shared.append(told["shared"])
        assert there.unpack(told).ids.tolist() == ids
    assert shared == [0, 0, 0, 30, 0, 0, 30, 0, 0]
    told = here.pack(Tokens.of([7] * 500))  # larger than the shelf, and kept all the same
    assert there.unpack(told) == Tokens.of([7] * 500)
    assert here.pack(Tokens.of([7] * 501))["shared"] == 500


def test_a_shelf_refuses_what_it_does_not_have() -> None:
    shelf = Shelf()
    shelf.unpack({"like": 0, "shared": 0, "more": "AAAAAA=="})
    with pytest.raises(LookupError):
        shelf.unpack({"like": 1, "shared": 2, "more": ""})


def test_replies_share_their_place_with_later_prompts() -> None:
    scribe = Scribe(Disguise())
    prompt, reply, more = list(range(200)), [7, 8, 9], [1, 2]
    told: list[Event] = [
        Arrived(1, 1.0, Ask("/completion", tokens=Tokens.of(prompt))),
        Replied(1, 2.0, np.array(reply, np.int32)),
        Arrived(2, 3.0, Ask("/completion", tokens=Tokens.of(prompt + reply + more))),
    ]
    text = [HEAD, MADE]
    for event in told:
        text += [scribe.event(1, event), scribe.answer(1, [])]
    first, answer, second = (entry.event for entry in read(text) if isinstance(entry, Heard))
    assert isinstance(first, Arrived)
    assert isinstance(answer, Replied)
    assert isinstance(second, Arrived)
    assert first.ask.tokens is not None
    assert second.ask.tokens is not None
    assert first.ask.tokens.extended(answer.ids).common_prefix(second.ask.tokens) == 203


VIEWS = (SlotView(0, True, 7, 3, 4096), SlotView(1, False, None, -1, 4096))


@pytest.mark.parametrize(
    "event",
    [
        Arrived(1, 2.5, Ask("/infill", Kind.INFILL, client_slot=1, children=2, user_starts=(3, 9)), VIEWS, 2.25),
        Read(1, 2.5, Ask("/completion", cache_prompt=False, prompts=3, max_tokens=-1)),
        Primed(1, 2.5, None),
        Primed(1, 2.5, Measured(1, 2, 3, 4, 5, 6.5)),
        Began(1, 2.5, 200),
        Answered(1, 2.5, 500, Measured(truncated=True)),
        Gone(1, 2.5, sent=True, shown=1),
        Looked(2.5, 2.25, VIEWS),
        Restarted(2.5, 2, 4096, Known(unified=True, sps=0.5), VIEWS),
        Restarted(2.5, 2, 4096),
    ],
    ids=lambda event: type(event).__name__,
)
def test_every_event_comes_back(event: Event) -> None:
    scribe = Scribe(Disguise())
    heard = list(read([HEAD, MADE, scribe.event(1, event), scribe.answer(1, [])]))[1]
    assert isinstance(heard, Heard)
    assert heard.event == event


def test_a_primer_is_known_by_its_length_and_last_hash_but_one() -> None:
    disguise = Disguise()
    ids = np.arange(500, dtype=np.int32)
    answer = json.loads(Scribe(disguise).answer(1, [Prime(1, Tokens.of(ids), 2, 60.0)]))
    last = int(disguise.tokens(ids)[0][-2])
    told = {"command": "Prime", "key": 1, "tokens": [500, last], "id_slot": 2, "patience": 60.0}
    assert answer["commands"] == [told]


def test_vectors() -> None:
    """A prefix embedding is made anew of the hashes; a server's keeps its dot products."""
    disguise = Disguise()
    scribe = Scribe(disguise)
    tokens = Tokens.of(range(300))
    semantic = np.array([0.6, -0.8], np.float32)
    asks = [Ask("/completion", tokens=tokens, vector=disguise.embed(tokens))]
    asks.append(Ask("/completion", tokens=tokens, vector=semantic, semantic=True))
    text = [HEAD, MADE]
    for ask in asks:
        text += [scribe.event(1, Read(1, 1.0, ask)), scribe.answer(1, [])]
    events = [entry.event for entry in read(text) if isinstance(entry, Heard)]
    prefix, server = (event.ask for event in events if isinstance(event, Read))
    assert prefix.vector is not None
    assert server.vector is not None
    assert prefix.vector.tolist() == disguise.embed(tokens).tolist() != embed_prefix(tokens).tolist()
    assert np.abs(server.vector).tolist() == np.abs(semantic).tolist()


# --- troubles ---


def test_a_file_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "no directory" / "events"
    assert lived(path, requests=5)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"toki: no more events are logged to {path}: No such file or directory"
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    assert lived(Path("/dev/full"), requests=5)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "toki: no more events are logged to /dev/full: No space left on device"
    ]


def test_a_log_is_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventlog, "LARGEST", 5_000)
    path = tmp_path / "events"
    lived(path, requests=8)
    assert 5_000 < path.stat().st_size < 20_000
    assert "no more events" in caplog.text
    with path.open("rb") as file:
        assert replay(file).difference == ""


def test_a_slow_disk_ends_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eventlog, "WAITING", 5)
    stuck = threading.Event()
    before = Scribe.event

    def slow(self: Scribe, engine: int, event: Event) -> bytes:
        stuck.wait(60)
        return before(self, engine, event)

    monkeypatch.setattr(Scribe, "event", slow)
    log = EventLog(tmp_path / "events")
    engine = log.engine(Mode.AUTO, 10)
    for key in range(1, 20):
        assert engine.handle(Arrived(key, key, Ask("/completion")))
    assert caplog.text.count("the disk is too slow, 5 events wait for it") == 1
    stuck.set()
    log.close()


def test_closing_waits_only_so_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = threading.Event()

    def slow(self: Scribe, engine: int, event: Event) -> bytes:
        stuck.wait(60)
        return b""

    monkeypatch.setattr(Scribe, "event", slow)
    log = EventLog(tmp_path / "events")
    log.engine(Mode.AUTO, 10).handle(Arrived(1, 1.0, Ask("/completion")))
    log.close(timeout=0.01)
    assert "does not take the last events in 0.01 s" in caplog.text
    stuck.set()
    log.close()


def test_what_cannot_be_logged_ends_the_log_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog(tmp_path / "events")
    unlike: Any = object()
    log.put(1, Began(1, 1.0, unlike), [])
    log.close()
    log.put(1, Began(1, 1.0, 200), [])
    assert "no more events are logged" in caplog.text
    assert "TypeError" in caplog.text


# --- the replaying program ---


def test_the_program_says_that_all_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "events"
    lived(path, requests=5)
    assert script.main([str(path)]) == 0
    assert capsys.readouterr().out.endswith("events of 1 engines: the same decisions\n")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"action":"passed"', b'"action":"pinned"', 'action was "pinned" and is "passed"'),
        (b'"commands":[{', b'"commands":[{},{', "and is "),
        (b'"commands"', b'"commandz"', "commands was null and is "),
        (b'"commands":', b'"commands": ', "written otherwise"),
    ],
)
def test_the_program_shows_the_first_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: bytes, new: bytes, said: str
) -> None:
    path = tmp_path / "events"
    lived(path, requests=5)
    path.write_bytes(path.read_bytes().replace(old, new))
    assert script.main([str(path)]) == 1
    out = capsys.readouterr().out
    assert said in out
    assert "line " in out


def test_the_program_says_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "events"
    assert script.main([str(path)]) == 2
    path.write_text("7")
    assert script.main([str(path)]) == 2
    assert "line 1" in capsys.readouterr().err


def test_decisions_are_written_whole(tmp_path: Path) -> None:
    """Every field of a decision is in the log: what is not there is not compared."""
    path = tmp_path / "events"
    lived(path)
    sent = [each for line in lines(path) for each in line.get("commands", ()) if each["command"] == "Send"]
    assert {*sent[0]["decision"]} == {*Decision.__slots__}
    option = next(option for each in sent for option in each["decision"]["options"])
    assert {*option} == {"action", "slot", "reuse", "now", "later", "why"}
    assert {*option["reuse"]} == {"low", "likely", "high"}
