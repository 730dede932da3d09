"""Seeded traffic like that of agents, for the demo, the accuracy check, the benchmark and offline simulations.

>>> run = SCENARIOS["growing-chat"].start(seed=1)
>>> play = sequential(run)
>>> request = next(play)                         # send chat(request), raw(request), ...
>>> request = play.send("the server's answer")   # ends with StopIteration
"""

from traffic.agents import AGENTS
from traffic.classic import CLASSIC
from traffic.mixed import MIXED
from traffic.people import PEOPLE
from traffic.request import Request
from traffic.request import chat
from traffic.request import messages_api
from traffic.request import natural
from traffic.request import raw
from traffic.request import responses_api
from traffic.run import Run
from traffic.run import at_once
from traffic.run import sequential
from traffic.scenario import Scenario
from traffic.tokens import WordTokenizer
from traffic.tokens import endless
from traffic.tokens import fake_reply
from traffic.tokens import ids

SCENARIOS = {scenario.name: scenario for scenario in (*CLASSIC, *AGENTS, *PEOPLE, MIXED)}

__all__ = [
    "AGENTS",
    "CLASSIC",
    "MIXED",
    "PEOPLE",
    "SCENARIOS",
    "Request",
    "Run",
    "Scenario",
    "WordTokenizer",
    "at_once",
    "chat",
    "endless",
    "fake_reply",
    "ids",
    "messages_api",
    "natural",
    "raw",
    "responses_api",
    "sequential",
]
