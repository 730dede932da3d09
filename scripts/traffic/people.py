"""Programs that people type into: a chat page with its housekeeping calls, an editor beside a chat."""

from __future__ import annotations

from collections.abc import Iterable

from traffic.request import Request
from traffic.request import system
from traffic.request import user
from traffic.run import Script
from traffic.run import once
from traffic.run import together
from traffic.scenario import Conversation
from traffic.scenario import Scenario
from traffic.scenario import Stage
from traffic.scenario import opening
from traffic.scenario import single


def open_webui(stage: Stage) -> Iterable[Script]:
    """After each answer come one-shot calls that paste the last messages behind instructions of their own.

    At times an answer is asked for anew, or found documents stand in the last user message and vanish from it later.
    """
    head = stage.writer("page")
    instructions = system(head.prose(60, 100))
    templates = {kind: head.prose(120, 250) for kind in ("title", "tags", "follow-ups")}

    def housekeeping(chat: Conversation, kinds: tuple[str, ...]) -> Iterable[Script]:
        recent = "\n".join(f"{item['role']}: {item['content']}" for item in chat.messages[1:][-6:])
        for kind in kinds:
            text = f"{templates[kind]}\n{recent}"
            yield once(single(f"{chat.session}/{kind}", "", text, stage.reply_tokens, kind))

    def session(name: str) -> Script:
        write = stage.writer(name)
        chat = Conversation(name, stage.reply_tokens, messages=[instructions])
        answer = ""
        for turn in range(8):
            text = opening(name, write.prose(40, 300)) if not turn else write.prose(40, 300)
            found = f"{write.prose(300, 600)}\n\n" if write.random.random() < 0.3 else ""
            answer = yield from chat.say(found + text)
            if write.random.random() < 0.15:
                del chat.messages[-2:]
                answer = yield from chat.say(found + text, "again")
            chat.messages[-2] = user(text)
            kinds = ("title", "tags", "follow-ups") if not turn else ("follow-ups",)
            yield from together(*housekeeping(chat, kinds))
        return answer

    return [session(f"chat-{number}") for number in range(1, 5)]


def fim_beside_chat(stage: Stage) -> Iterable[Script]:
    """An editor asks at each stop of the cursor, with a window of the file that slides; a long chat runs beside it."""

    def editor() -> Script:
        write = stage.writer("editor")
        file = write.code(4000, 4000).splitlines()
        window = write.size(60, 60)  # lines
        cursor = len(file) // 4
        snippets: list[str] = []
        answer = ""
        for stop in range(36):
            if stop % 12 == 11:  # another place; what was left behind joins the snippets at the head
                snippets = [*snippets[-2:], "\n".join(file[cursor : cursor + window // 4])]
                cursor = write.random.randrange(len(file))
            file.insert(cursor, f"    {write.phrase(write.random.randint(2, 6))}")
            cursor += 1
            before = "\n".join((*snippets, *file[max(0, cursor - window) : cursor]))
            after = "\n".join(file[cursor : cursor + window // 3])
            answer = yield fim("editor", before, after, stage.reply_tokens)
        return answer

    def talk() -> Script:
        write = stage.writer("chat")
        chat = Conversation("chat", stage.reply_tokens, messages=[system(write.prose(300, 500))])
        answer = yield from chat.say(opening("chat", write.prose(100, 300)))
        for _ in range(17):
            answer = yield from chat.say(write.prose(60, 300))
        return answer

    return [editor(), talk()]


def fim(session: str, before: str, after: str, max_tokens: int) -> Request:
    """A fill-in-the-middle request as raw text (as one user message where a runner sends it as chat)."""
    text = f"<|fim_prefix|>{before}<|fim_suffix|>{after}<|fim_middle|>"
    return Request(
        session=session,
        messages=(user(text),),
        max_tokens=max_tokens,
        kind="fim",
        one_shot=True,
        form="raw",
        stream=False,
    )


PEOPLE = (
    Scenario("open-webui", "four chats with title, tags and follow-ups", open_webui),
    Scenario("fim-beside-chat", "an editor's completions beside a chat", fim_beside_chat),
)
