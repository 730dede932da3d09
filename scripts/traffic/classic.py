"""The six basic patterns: what a cache of prompts can win or lose, each in its purest form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from traffic.request import Request
from traffic.request import system
from traffic.run import Script
from traffic.run import once
from traffic.run import together
from traffic.scenario import Conversation
from traffic.scenario import Scenario
from traffic.scenario import Stage
from traffic.scenario import opening
from traffic.scenario import single


def shared_preamble(stage: Stage) -> Iterable[Script]:
    preamble = system(stage.writer("preamble").prose(1500, 1500))

    def session(name: str) -> Script:
        write = stage.writer(name)
        chat = Conversation(name, stage.reply_tokens, messages=[preamble])
        answer = yield from chat.say(opening(name, write.prose(60, 300)))
        for _ in range(write.random.randint(10, 12)):
            answer = yield from chat.say(write.prose(60, 500))
        return answer

    return [session(f"agent-{number}") for number in range(1, 7)]


def big_with_sides(stage: Stage) -> Iterable[Script]:
    write = stage.writer("main")
    chat = Conversation("main", stage.reply_tokens, write.tools(6, 80, 160), [system(write.prose(500, 700))])

    def session() -> Script:
        answer = yield from chat.say(opening("main", write.prose(300, 500)))
        for turn in range(1, 28):
            if write.random.random() < 0.8:
                yield from once(side(turn))
            answer = yield from chat.say(write.prose(80, 230))
        return answer

    def side(turn: int) -> Request:
        name = f"side-{turn}"
        if write.random.random() < 0.5:
            return single(name, write.prose(60, 120), write.prose(200, 700), stage.reply_tokens, "side")
        aside = single(name, chat.messages[0]["content"], write.prose(100, 400), stage.reply_tokens, "side")
        return replace(aside, tools=chat.tools)

    return [session()]


def growing_chat(stage: Stage) -> Iterable[Script]:
    def session() -> Script:
        write = stage.writer("chat")
        chat = Conversation("chat", stage.reply_tokens, messages=[system(write.prose(100, 200))])
        answer = yield from chat.say(opening("chat", write.prose(100, 300)))
        for _ in range(29):
            answer = yield from chat.say(write.prose(80, 300))
        return answer

    return [session()]


def five_in_rotation(stage: Stage) -> Iterable[Script]:
    def session(name: str) -> Script:
        write = stage.writer(name)
        chat = Conversation(name, stage.reply_tokens, messages=[system(write.prose(600, 1000))])
        answer = yield from chat.say(opening(name, write.prose(100, 300)))
        for _ in range(7):
            answer = yield from chat.say(write.prose(100, 300))
        return answer

    return [session(f"agent-{number}") for number in range(1, 6)]


def parent_and_subagents(stage: Stage) -> Iterable[Script]:
    head = stage.writer("heads")
    tools = head.tools(8, 60, 140)
    parent_text = head.prose(600, 800)
    child_text = head.prose(400, 600)

    def subagent(name: str) -> Script:
        write = stage.writer(name)
        chat = Conversation(name, stage.reply_tokens, tools[:5], [system(child_text)])
        answer = yield from chat.say(opening(name, write.prose(150, 300)), "subagent")
        for _ in range(write.random.randint(6, 9)):
            answer = yield from chat.say(write.prose(200, 500), "subagent")
        return answer

    def parent() -> Script:
        write = stage.writer("parent")
        chat = Conversation("parent", stage.reply_tokens, tools, [system(parent_text)])
        yield from chat.say(opening("parent", write.prose(200, 400)))
        for part in (1, 2):
            for _ in range(4):
                yield from chat.say(write.prose(200, 420))
            reports = yield from together(*(subagent(f"subagent-{part}-{number}") for number in (1, 2, 3)))
            yield from chat.say("\n".join(reports))
        answer = ""
        for _ in range(4):
            answer = yield from chat.say(write.prose(200, 420))
        return answer

    return [parent()]


def same_document(stage: Stage) -> Iterable[Script]:
    """The document stands in the system message, as in a batch script; no question knows of another."""
    document = stage.writer("document").prose(4000, 4000)

    def session(name: str) -> Script:
        return once(
            replace(
                single(name, document, opening(name, stage.writer(name).phrase(12)), stage.reply_tokens, "question"),
                stream=True,
            )
        )

    return [session(f"question-{number}") for number in range(1, 31)]


CLASSIC = (
    Scenario("shared-preamble", "six sessions behind one preamble, in random turn", shared_preamble),
    Scenario("big-with-sides", "one long session with side calls, some with its tools", big_with_sides),
    Scenario("growing-chat", "one growing chat", growing_chat),
    Scenario("five-in-rotation", "five agents in rotation (one more than four slots)", five_in_rotation, "rotation"),
    Scenario("parent-and-subagents", "a parent and twice three subagents", parent_and_subagents),
    Scenario("same-document", "one document, many questions", same_document),
)
