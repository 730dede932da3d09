"""Conversations: which request continues which, and how likely each is to come back.

Identity is the token prefix, never a header. How likely a conversation returns is learnt from what its kin did:
conversations that start alike (the same agent's subagents, the same title prompt) behave alike.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field

from toki.engine.contents import Contents
from toki.engine.contents import Held

CONTINUES = 0.95  # share of a conversation's contents that a prompt must extend to go by its name
SLACK = 16  # tokens at the end of a prompt that may be gone when the conversation goes on, at most 5 % of a short one
PRIOR = 2.0  # conversations that the usual chance counts for beside what a family showed
EDITED = 0.25  # what is left of the chance that a conversation goes on as it was, once it was edited
KIN = 0.3  # share of a first prompt that two conversations of one family have in common
KIN_TOKENS = 100  # or so many tokens: templates of side calls stand before texts of any length
BEYOND = 32  # tokens that two conversations of one family may have in common by chance behind their head


@dataclass(slots=True)
class Family:
    """Conversations whose first prompts start alike: how many there were, and how many of them went on."""

    started: int = 0
    returned: int = 0

    def chance(self, usual: float) -> float:
        """The chance that one of its conversations returns after its first request; `usual` where little is known."""
        return (self.returned + PRIOR * usual) / (self.started + PRIOR)


@dataclass(slots=True)
class Conversation:
    """One conversation: `held` is what its next prompt most likely starts with, `key` its first request, and `name` the
    first request of the conversation that it is recorded as."""

    key: int
    held: Held
    family: Family
    name: int
    turns: int = 1
    seen: int = 0  # number of the latest request, counted over all conversations
    first: int = 0  # tokens of its first prompt
    head: int = 0  # of these, those that its kin start with too; 0: as far as is known, none
    kept: int = 0  # tokens that stood before and after its last edit; 0: it only grew since
    edited: bool = False  # a later one goes on from within its history: it was edited, or answered anew
    gap: float = 0.0  # running mean of requests of others between two turns


@dataclass(slots=True)
class Conversations:
    """The recent conversations of one server, latest last; at most `limit`, the longest unseen forgotten first."""

    contents: Contents
    limit: int = 64
    recent: OrderedDict[int, Conversation] = field(default_factory=OrderedDict)
    requests: int = 0
    all: Family = field(default_factory=Family)  # every conversation taken together

    def note(self, key: int, prompt: Held) -> Conversation:
        """A request arrived: it continues a conversation or starts one."""
        self.requests += 1
        conversation, name = self._find(prompt)
        if conversation is None:
            conversation = self._start(key, prompt, name)
        else:
            self._go_on(conversation)
            conversation.held = prompt
            conversation.kept = 0
            conversation.edited = False
        conversation.seen = self.requests
        self.recent[conversation.key] = conversation
        self.recent.move_to_end(conversation.key)
        while len(self.recent) > self.limit:
            self.recent.popitem(last=False)
        return conversation

    def _start(self, key: int, prompt: Held, name: int | None) -> Conversation:
        """The conversation of a prompt that continues none as it was: a new one, or one whose history was edited.

        Clients blank old results, move a reminder or show a file anew, at every turn maybe. Of kin that is known to
        share a head with others a new conversation has that head in common; one that has clearly more is the next
        version of it, which takes over its habits.
        """
        kin, shared = self._nearest(prompt)
        conversation = Conversation(key, prompt, Family(), key if name is None else name, first=prompt.length)
        again = False
        if kin is not None:
            alike = self.contents.alike(kin.held, prompt)
            if shared >= min(KIN * prompt.length, KIN_TOKENS):
                conversation.family = kin.family
                again = alike and 0 < kin.head < shared - BEYOND
                kin.head = kin.head or shared
                conversation.head = kin.head if again else shared
            if again:
                self._go_on(kin)
                conversation.turns, conversation.gap, conversation.kept = kin.turns, kin.gap, shared
            if again or (alike and shared > kin.first):
                kin.edited = True
        if not again:
            conversation.family.started += 1
            self.all.started += 1
        return conversation

    def _go_on(self, conversation: Conversation) -> None:
        """It is at its next turn."""
        gap = self.requests - conversation.seen - 1
        conversation.gap = gap if conversation.turns == 1 else 0.7 * conversation.gap + 0.3 * gap
        if conversation.turns == 1:
            conversation.family.returned += 1
            self.all.returned += 1
        conversation.turns += 1

    def _find(self, prompt: Held) -> tuple[Conversation | None, int | None]:
        """The conversation that a prompt continues, and the name that it goes by.

        It continues the one that it shares most with, where that is all of its last prompt but for a few tokens that
        templates put before an answer: of two sessions behind one long preamble neither must take the other's turns.
        The name is that of the latest of whose contents the prompt extends at least 95 %.
        """
        known = list(reversed(self.recent.values()))
        shares = self.contents.likely([one.held for one in known], [prompt], alike=True)[0].tolist()
        best, most, name = None, 0, None
        for one, shared in zip(known, shares, strict=True):
            if shared > most and shared >= one.held.certain - min(SLACK, max(4, one.held.certain // 20)):
                best, most = one, shared
            if name is None and one.held.length and shared >= CONTINUES * one.held.length:
                name = one.name
        return best, name

    def chance(self, conversation: Conversation) -> float:
        """How likely it comes back at all: less with each request that it stays away beyond its habit."""
        age = self.requests - conversation.seen
        chance = conversation.family.chance(self.all.chance(0.5)) if conversation.turns == 1 else 0.95
        if conversation.edited:
            chance *= EDITED
        patience = 8 + 4 * conversation.gap
        return float(chance * 0.5 ** (age / patience))

    def wanted(self, but: int | None) -> Iterator[tuple[Held, float]]:
        """What the next prompts of all conversations but `but` will start with, and how likely they come. One that was
        edited keeps what stood through it, and the rest with that part of the chance that edits leave."""
        for conversation in self.recent.values():
            if conversation.key == but:
                continue
            held, chance = conversation.held, self.chance(conversation)
            if conversation.kept:
                kept = min(conversation.kept, held.length)
                yield self.contents.hold(held.place, min(kept, held.certain), kept), chance * (1 - EDITED)
                chance *= EDITED
            yield held, chance

    def siblings(self, key: int) -> float:
        """The chance that another conversation starts as this one does, the better the more there were; 0 after its
        first prompt, when it is too late to prepare for that."""
        conversation = self.recent.get(key)
        if conversation is None or conversation.turns > 1:
            return 0.0
        return 1 - 1 / conversation.family.started

    def replace_held(self, old: Held, new: Held) -> None:
        """More is known of some contents."""
        for conversation in self.recent.values():
            if conversation.held is old:
                conversation.held = new

    def forget(self, held: Held) -> None:
        """Some contents turned out to be wrong: the conversations that end with them are given up."""
        for conversation in [one for one in self.recent.values() if one.held is held]:
            del self.recent[conversation.key]

    def _nearest(self, prompt: Held) -> tuple[Conversation | None, int]:
        """The conversation that shares most with a prompt, the latest of several, and how many tokens."""
        best, most = None, 0
        for conversation in reversed(self.recent.values()):
            shared = self.contents.span(conversation.held, prompt).likely
            if shared > most:
                best, most = conversation, shared
        return best, most
