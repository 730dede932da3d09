"""Sessions shaped like coding agents, as their sources and public reports describe them.

Sizes are about an eighth of life, so that a CPU can play them; `scale=8` is life-size. What matters is the shape: which
part of the prompt is shared with whom, what is appended, what is rewritten, and which calls come in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from traffic.request import Request
from traffic.request import assistant
from traffic.request import call
from traffic.request import result
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
from traffic.words import Writer


def tool_loop(chat: Conversation, write: Writer, text: str, steps: int, kind: str = "turn") -> Script:
    """A user's turn: ask, run the tools that the answer is taken to call, ask again, `steps` times."""
    chat.messages.append(user(text))
    for step in range(steps):
        answer = yield from once(chat.request(kind))
        calls = [
            call(f"call_{len(chat.messages)}_{place}", str(tool["function"]["name"]), {"path": write.phrase(3)})
            for place, tool in enumerate(write.random.sample(chat.tools, k=write.random.choice((1, 1, 1, 2))))
        ]
        chat.messages.append(assistant(answer, calls))
        for item in calls:
            output = write.code(40, 300) if step % 2 else write.prose(40, 300)
            chat.messages.append(result(item["id"], output))
    answer = yield from once(chat.request(kind))
    chat.messages.append(assistant(answer))
    return answer


def claude_code(stage: Stage) -> Iterable[Script]:
    """Two sessions in one project: 17 tools and a long system text, side calls without either, subagents, /compact."""
    head = stage.writer("project")
    tools = head.tools(17, 35, 80)
    instructions = system(head.prose(500, 700))
    reminders = f"<system-reminder>\n{head.prose(150, 250)}\n</system-reminder>\n"
    topic_text = head.prose(40, 80)
    command_text = head.prose(100, 160)
    agent_text = system(head.prose(200, 300))

    def side(name: str, text: str, prompt: str, kind: str) -> Script:
        return once(single(name, text, prompt, stage.reply_tokens, kind))

    def subagent(name: str) -> Script:
        write = stage.writer(name)
        chat = Conversation(name, stage.reply_tokens, tools[:7], [agent_text])
        return (
            yield from tool_loop(
                chat, write, opening(name, write.prose(60, 150)), write.random.randint(3, 5), "subagent"
            )
        )

    def session(name: str) -> Script:
        write = stage.writer(name)
        chat = Conversation(name, stage.reply_tokens, tools, [instructions])
        typed = write.prose(30, 90)
        yield from once(single(f"{name}/quota", "", "quota", 1, "side"))
        yield from together(
            tool_loop(chat, write, f"{reminders}{opening(name, typed)}", 4),
            side(f"{name}/topic", topic_text, typed, "title"),
        )
        yield from together(*(subagent(f"{name}/agent-{number}") for number in (1, 2, 3)))
        for turn in (2, 3):
            nudge = f"\n<system-reminder>\n{write.prose(30, 40)}\n</system-reminder>"
            yield from together(
                tool_loop(chat, write, write.prose(30, 150) + nudge, write.random.randint(3, 5)),
                side(f"{name}/command-{turn}", command_text, write.phrase(8), "side"),
            )
        summary = yield from chat.say(write.prose(60, 90), "compaction")
        chat.messages = [instructions]
        return (yield from tool_loop(chat, write, f"{reminders}{opening(name, summary)}\n{write.prose(100, 200)}", 3))

    return [session(f"claude-{number}") for number in (1, 2)]


def opencode(stage: Stage) -> Iterable[Script]:
    """Sorted tools, a title call beside the first turn, and a mode reminder that moves along with the last user text.

    The user message that loses the reminder changes, so all behind it is evaluated again.
    """
    head = stage.writer("project")
    tools = tuple(sorted(head.tools(11, 30, 60), key=lambda tool: str(tool["function"]["name"])))
    instructions = system(head.prose(500, 700))
    title_text = head.prose(60, 100)
    explore_text = system(head.prose(100, 200))
    reminder = f"\n<system-reminder>\n{head.prose(30, 60)}\n</system-reminder>"

    def subagent(name: str) -> Script:
        write = stage.writer(name)
        chat = Conversation(name, stage.reply_tokens, tools[:6], [explore_text])
        return (yield from tool_loop(chat, write, opening(name, write.prose(60, 150)), 4, "subagent"))

    def session(name: str) -> Script:
        write = stage.writer(name)
        chat = Conversation(name, stage.reply_tokens, tools, [instructions])
        text = opening(name, write.prose(30, 90))
        yield from together(
            tool_loop(chat, write, text + reminder, write.random.randint(2, 4)),
            once(single(f"{name}/title", title_text, text, stage.reply_tokens, "title")),
        )
        for turn in (2, 3, 4):
            chat.messages = [
                user(message["content"].removesuffix(reminder)) if message["role"] == "user" else message
                for message in chat.messages
            ]
            text = write.prose(30, 150) + (reminder if turn < 4 else "")
            answer = yield from tool_loop(chat, write, text, write.random.randint(2, 4))
            if turn == 2:
                yield from together(subagent(f"{name}/explore"))
        return answer

    return [session(f"opencode-{number}") for number in (1, 2, 3)]


def codex(stage: Stage) -> Iterable[Script]:
    """Strictly appended items; compaction sends the history without tools, then starts over from a summary."""
    head = stage.writer("project")
    tools = head.tools(8, 40, 90)
    instructions = system(head.prose(700, 900))
    project = user(head.prose(150, 250))
    environment = user(head.prose(20, 30))

    def session(name: str) -> Script:
        write = stage.writer(name)
        start = [instructions, project, environment]
        chat = Conversation(name, stage.reply_tokens, tools, list(start))
        texts = [opening(name, write.prose(30, 90)), *(write.prose(30, 150) for _ in range(2))]
        for text in texts:
            yield from tool_loop(chat, write, text, write.random.randint(3, 5))
        chat.messages.append(user(write.prose(60, 90)))
        summary = yield from once(replace(chat.request("compaction"), tools=()))
        chat.messages = [*start, *map(user, texts), user(summary or write.prose(10, 20))]
        answer = ""
        for _ in range(2):
            answer = yield from tool_loop(chat, write, write.prose(30, 150), 3)
        return answer

    return [session(f"codex-{number}") for number in (1, 2, 3)]


def aider(stage: Stage) -> Iterable[Script]:
    """No tools; a repository map in the middle that is ranked anew at times, and files that stand behind the history.

    Each finished turn moves the files back and edits them, so their text is evaluated again.
    """
    head = stage.writer("project")
    start = [system(head.prose(300, 400))]
    for _ in range(2):
        start += [user(head.prose(30, 60)), assistant(head.code(40, 80))]
    reminder = head.prose(60, 100)
    commit_text = head.prose(40, 60)

    def session(name: str) -> Script:
        write = stage.writer(name)
        done = [user(opening(name, "Ok.")), assistant("Ok.")]
        repository = write.code(300, 500)
        files = write.code(700, 1000).splitlines(keepends=True)
        answer = ""
        for turn in range(10):
            if turn and write.random.random() < 0.3:
                repository = write.code(300, 500)
            current = [user(write.prose(40, 160))]
            for reflection in range(write.random.choice((1, 1, 2))):
                if reflection:
                    current += [assistant(answer), user(write.prose(40, 120))]
                messages = [
                    *start,
                    *(user(repository), assistant("Ok, these stay as they are.")),
                    *done,
                    *(user("".join(files)), assistant("Ok, any changes go to these files.")),
                    *current[:-1],
                    user(f"{current[-1]['content']}\n\n{reminder}"),
                ]
                answer = yield Request(
                    session=name, messages=tuple(messages), max_tokens=stage.reply_tokens, kind="turn"
                )
            done += [*current, assistant(answer)]
            files[int(write.random.random() * len(files))] = write.code(20, 20)
            yield from once(
                single(f"{name}/commit-{turn}", commit_text, write.code(40, 120), stage.reply_tokens, "side")
            )
        return answer

    return [session(f"aider-{number}") for number in (1, 2)]


AGENTS = (
    Scenario("claude-code", "two sessions shaped like Claude Code", claude_code),
    Scenario("opencode", "three sessions shaped like OpenCode", opencode),
    Scenario("codex", "three sessions shaped like Codex", codex),
    Scenario("aider", "two sessions shaped like Aider", aider),
)
