"""Random traffic of everything at once, for checking predictions: whatever clients do, in unhelpful order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import replace

from traffic.request import Message
from traffic.request import Request
from traffic.request import Tool
from traffic.request import assistant
from traffic.request import call
from traffic.request import result
from traffic.request import system
from traffic.request import user
from traffic.run import Script
from traffic.run import once
from traffic.scenario import Conversation
from traffic.scenario import Scenario
from traffic.scenario import Stage
from traffic.scenario import opening
from traffic.scenario import single
from traffic.words import Writer

USERS = 6
CONVERSATIONS = 9  # of each user, one after another
# what happens at a turn, and how often
EVENTS = {"turn": 12, "side": 3, "edit": 2, "blank": 1, "repeat": 2, "copies": 1, "abort": 2}


@dataclass(frozen=True, slots=True)
class Head:
    """What conversations of one kind start with."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]


def mixed(stage: Stage) -> Iterable[Script]:
    write = stage.writer("heads")
    heads = (
        Head((), ()),
        Head((system(write.prose(20, 60)),), ()),
        Head((system(write.prose(600, 900)),), ()),
        Head((system(write.prose(300, 500)),), write.tools(6, 30, 80)),
    )

    def person(name: str) -> Script:
        write = stage.writer(name)
        answer = ""
        for number in range(CONVERSATIONS):
            head = write.random.choice(heads)
            answer = yield from conversation(f"{name}/{number}", head, write, stage.reply_tokens)
        return answer

    return [person(f"person-{number}") for number in range(1, USERS + 1)]


def conversation(name: str, head: Head, write: Writer, reply_tokens: int) -> Script:
    """A conversation of 1 to 14 turns, each with one of EVENTS."""
    random = write.random
    chat = Conversation(name, reply_tokens, head.tools, list(head.messages))
    chat.form = "raw" if random.random() < 0.3 else "chat"
    chat.stream = random.random() < 0.6
    chat.messages.append(user(opening(name, write.varied(2, 900))))
    answer = yield from once(chat.request())
    for turn in range(random.choice((0, 1, 2, 4, 8, 13))):
        event = random.choices(list(EVENTS), weights=list(EVENTS.values()))[0]
        if event == "repeat":  # the same body once more; its answer takes the place of the first
            answer = yield from once(chat.request("repeat"))
        chat.messages.append(assistant(answer))
        if event == "side":
            yield from once(side(f"{name}/side-{turn}", chat, write))
        texts = [place for place, message in enumerate(chat.messages) if message["role"] == "user"]
        if event == "edit":  # an earlier message is replaced and the conversation goes on from there
            place = random.choice(texts)
            chat.messages[place:] = [user(write.varied(2, 900))]
        elif event == "blank":  # an earlier message is shortened, all behind it stays
            chat.messages[random.choice(texts)] = user("(removed)")
            chat.messages.append(user(write.varied(2, 900)))
        elif head.tools and random.random() < 0.5:
            item = call(f"call_{turn}", str(random.choice(head.tools)["function"]["name"]), {"path": write.phrase(2)})
            chat.messages[-1] = assistant(answer, [item])
            chat.messages.append(result(item["id"], write.varied(2, 900)))
        else:
            chat.messages.append(user(write.varied(2, 900)))
        if event == "abort":
            yield from once(aborted(chat, write))
            if random.random() < 0.5:  # the person says it differently, else the client tries again
                chat.messages[-1] = {**chat.messages[-1], "content": write.varied(2, 900)}
        answer = yield from once(replace(chat.request(), n=random.choice((2, 3)) if event == "copies" else 1))
    return answer


def aborted(chat: Conversation, write: Writer) -> Request:
    """The next request of a client that will hang up: in the prefill of a long message, or in a long answer."""
    if write.random.random() < 0.5:
        chat.messages[-1] = {**chat.messages[-1], "content": write.prose(1200, 2400)}
        return replace(chat.request("abort"), abort_after="prefill")
    tokens = 1 + int(write.random.random() * chat.reply_tokens)
    return replace(chat.request("abort"), abort_after=tokens, max_tokens=25 * chat.reply_tokens)


def side(name: str, chat: Conversation, write: Writer) -> Request:
    """A side call: on its own, or behind the conversation's head and tools, or behind its whole history."""
    alone = single(name, write.prose(20, 60), write.varied(10, 600), chat.reply_tokens, "side")
    how = write.random.choice(("alone", "head", "history"))
    if how == "alone":
        return alone
    history = chat.messages if how == "history" else [item for item in chat.messages if item["role"] == "system"]
    return replace(alone, messages=(*history, user(write.varied(10, 600))), tools=chat.tools)


MIXED = Scenario("mixed", "six people with random chats, raw prompts, side calls, edits, repeats, aborts", mixed)
