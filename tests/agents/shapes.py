"""What agents send, by name: those of scripts/traffic, and small builders for those that it does not play."""

from __future__ import annotations

from collections.abc import Iterator

from traffic import SCENARIOS
from traffic import Request
from traffic import fake_reply
from traffic.request import Message
from traffic.request import Tool
from traffic.request import assistant
from traffic.request import call
from traffic.request import result
from traffic.request import system
from traffic.request import user
from traffic.words import Writer

TURNS = 6


def played(name: str) -> list[Request]:
    """A whole play of a scenario, with made-up answers."""
    run = SCENARIOS[name].start(1)
    found = []
    while (request := run.take()) is not None:
        found.append(request)
        run.answer(request.session, fake_reply(request, request.max_tokens))
    return found


def turn(messages: list[Message], tools: tuple[Tool, ...] = (), kind: str = "turn") -> Request:
    return Request(session="one", messages=tuple(messages), tools=tools, max_tokens=8, kind=kind)


def step(write: Writer, messages: list[Message], tools: tuple[Tool, ...], number: int) -> None:
    """What an agent appends after an answer: the answer, a call and its result."""
    made = call(f"call_{number}", str(tools[number % len(tools)]["function"]["name"]), {"path": write.phrase(3)})
    messages += [assistant(write.phrase(8), [made]), result(f"call_{number}", write.code(100, 200))]


def appending(write: Writer, environment: bool = False) -> Iterator[Request]:
    """Cline, Roo Code, Zed: appends and rewrites nothing; `environment`: each user message ends with a clock."""
    tools = write.tools(8, 40, 80)
    messages = [system(write.prose(400, 500))]
    for number in range(TURNS):
        block = f"\n<environment>{number}: {write.prose(20, 40)}</environment>" if environment else ""
        messages.append(user(write.prose(30, 60) + block))
        yield turn(messages, tools)
        step(write, messages, tools, number)
        yield turn(messages, tools)
        messages.append(assistant(write.phrase(8)))


def cline(write: Writer) -> Iterator[Request]:
    """A file that is read again blanks what was read before, once that is worth it."""
    requests = list(appending(write, environment=True))
    yield from requests
    old = next(item for item in requests[-1].messages if item["role"] == "tool")
    messages = [
        {**item, "content": "outdated"} if item is old else item for item in (*requests[-1].messages, assistant("Ok."))
    ]
    yield turn([*messages, user(write.prose(30, 60))], requests[-1].tools)


def continue_chat(write: Writer) -> Iterator[Request]:
    """A chat without tools, and a title of its first exchange."""
    messages = [system(write.prose(100, 150))]
    for number in range(TURNS):
        messages.append(user(write.prose(40, 300)))
        yield turn(messages)
        messages.append(assistant(write.prose(40, 80)))
        if not number:
            yield turn([user(f"{write.prose(40, 60)}\n{messages[-1]['content']}")], kind="side")


def infill(write: Writer) -> Iterator[Request]:
    """llama.vim: chunks of other places first, the oldest of which leaves; then what stands before the cursor."""
    chunks = [write.code(100, 100) for _ in range(4)]
    file = write.code(1000, 1000).splitlines()
    for number in range(TURNS):
        chunks = [*chunks[1:], write.code(100, 100)]
        before = "\n".join(file[: 20 + number])
        yield turn([user("\n".join((*chunks, before)))], kind="fim")


def home_assistant(write: Writer) -> Iterator[Request]:
    """Short conversations whose system text ends with the time and with states that change."""
    tools = write.tools(15, 30, 60)
    instructions = write.prose(300, 400)
    for number in range(TURNS):
        states = write.prose(200, 300)
        messages = [system(f"{instructions}\n{states}\nThe time is 10:{number:02}:00.")]
        messages.append(user(write.phrase(8)))
        yield turn(messages, tools)


def zed(write: Writer) -> Iterator[Request]:
    requests = list(appending(write))
    yield from requests
    yield turn([*requests[1].messages, user("A title, please.")], kind="side")  # without the tools


def goose(write: Writer) -> Iterator[Request]:
    """Hints of folders that were touched join the system text."""
    tools = tuple(sorted(write.tools(8, 40, 80), key=lambda tool: str(tool["function"]["name"])))
    text = write.prose(300, 400)
    messages: list[Message] = []
    for number in range(TURNS):
        messages.append(user(write.prose(30, 60)))
        yield turn([system(text), *messages], tools)
        step(write, messages, tools, number)
        if number == 2:
            text += f"\n{write.prose(40, 60)}"
        yield turn([system(text), *messages], tools)
        messages.append(assistant(write.phrase(8)))
    yield turn([system(write.prose(30, 40)), user(write.prose(30, 60))], kind="side")


def qwen_code(write: Writer) -> Iterator[Request]:
    """Asks after an answer without tools who speaks next, with the history and the tools as they are."""
    for request in appending(write):
        yield request
        if request.messages[-1]["role"] == "tool":
            yield turn([*request.messages, assistant("Done."), user("Who speaks next?")], request.tools, "side")


def shape(name: str) -> list[Request]:
    """The requests of the agent of that page of docs/agents, in order."""
    write = Writer(1, name, 1.0)
    match name:
        case "claude-code" | "opencode" | "codex" | "aider" | "open-webui":
            return played(name)
        case "cline":
            return list(cline(write))
        case "continue":
            return list(continue_chat(write))
        case "llama-vim":
            return list(infill(write))
        case "home-assistant":
            return list(home_assistant(write))
        case "zed":
            return list(zed(write))
        case "goose":
            return list(goose(write))
        case "qwen-code":
            return list(qwen_code(write))
    raise KeyError(name)
