"""Fork: prompts that share a long prefix and come at once.

A KV cache in use serves nobody else, so a server alone evaluates such a prefix once for each of them (b10434 and
b11549, four prompts of 8,060 tokens: 32,240 evaluated). Forked, it is evaluated once, by a primer that stands for all.
Further primers of one other token each, swapped onto the slot of the first, each push the one before them into the RAM
cache: a copy for everyone, since no entry contains another. The requests themselves then go as they came (8,244).

Who belongs together, and whether it pays on a shadow; `forks` carries it out.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.policy import Prices
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish
from toki.engine.tokens import Tokens

LEAST = 512  # tokens of a prefix for which requests are held: fewer are evaluated sooner than they are talked about
# Tokens by which a head is cut on a sliding-window model whose server thins checkpoints out. A copy from the RAM cache
# holds but the window before its end, so those who come later and share a little less than the head, as questions on
# one document do that begin with other words, would find nothing there (b10434: 1.1 to 1.3 times as much evaluated).
STEP_BACK = 64
LEAST_SHARE = 0.1  # of the milliseconds that the requests cost unforked, which a fork must save
LONGEST = 45_000.0  # milliseconds of a primer that is expected: it can't be taken back when the clients leave
SO_MANY = 16  # requests that are forked at once
GATHER = 0.05  # of its own prefill, for which a request waits while others are still being read
LONGEST_GATHER = 0.25  # seconds
# Seconds for which a primer is waited for. Who leaves before evaluates all of its head once more, so this only ends the
# waiting for a server that does not answer: on a slow one that was just met nobody knows how long a head takes.
PATIENCE = 600.0
NO_WORSE = 1.02  # times what the requests cost unforked: more must not follow from any hypothesis about a new server
FIRST = -(1 << 60)  # keys of primers on copies of a shadow: like those of no request


def kin(contents: Contents, prompt: Held, others: Mapping[int, Held]) -> tuple[int, list[int]]:
    """The length of the head that a prompt shares with others, and who these are: those that share at least half as
    much with it as the nearest does. (0, []) where nobody shares enough."""
    shared = {key: contents.lcp(prompt.place, other.place) for key, other in others.items()}
    most = max(shared.values(), default=0)
    if most < LEAST:
        return 0, []
    near = sorted((key for key in shared if 2 * shared[key] >= most), key=lambda key: -shared[key])[: SO_MANY - 1]
    return min(min(shared[key] for key in near), prompt.length - 1), near


def heads(tokens: Tokens, head: int, n: int, next_ones: Collection[int] = ()) -> list[Tokens]:
    """`n` prompts of the first `head` tokens and one more, each another one, but none that any prompt goes on with
    (`next_ones`); fewer where the head has fewer kinds of tokens: these are surely in the vocabulary."""
    kinds = [kind for kind in dict.fromkeys(tokens.ids[:head].tolist()) if kind not in next_ones][:n]
    return [tokens.head(head).extended([kind]) for kind in kinds]


def best(shadow: Shadow, wishes: Sequence[Wish], primers: Sequence[Held], prices: Prices) -> int:
    """How many of the primers to send before the requests `wishes`: none where that is not worth it."""
    plain = cost(shadow, wishes, (), prices)
    saved = {n: plain - cost(shadow, wishes, primers[:n], prices) for n in range(1, len(primers) + 1)}
    n = max(saved, key=lambda n: saved[n], default=0)
    return n if n and saved[n] >= max(LEAST_SHARE * plain, LEAST * prices.evaluate) else 0


def may_pay(shadow: Shadow, wishes: Sequence[Wish], head: int, prices: Prices) -> bool:
    """Whether enough of the shared head would be evaluated more than once, and it is not too long for a primer."""
    if prices.measured and head * prices.evaluate > LONGEST:
        return False
    own = sum(wish.prompt.length - head for wish in wishes)
    return cost(shadow, wishes, (), prices) >= (own + LEAST) * prices.evaluate


def cost(shadow: Shadow, wishes: Sequence[Wish], primers: Sequence[Held], prices: Prices) -> float:
    """Milliseconds that the server works until all of `wishes` are evaluated, sent at once behind the primers. One that
    finds no free slot costs the same either way."""
    after = shadow.copy()
    total = 0.0
    slot: int | None = None
    for number, primer in enumerate(primers):
        swap = None if slot is None else slot + shadow.rules.n_slots
        launch = after.launch(Wish(FIRST + number, primer, swap))
        if launch is None or launch.foreign:
            return float("inf")
        slot = launch.slot
        total += (primer.length - launch.reuse.likely) * prices.evaluate + launch.moved * prices.move + prices.primer
        after.finish(FIRST + number, 1)
    for wish in wishes:
        launch = after.launch(wish)
        if launch is not None and launch.foreign and primers:
            return float("inf")
        if launch is not None:
            total += (wish.prompt.length - launch.reuse.likely) * prices.evaluate + launch.moved * prices.move
    return total


def strays(shadow: Shadow, primer: Held, id_slot: int) -> bool:
    """Whether a primer would reuse what it must not: what another owner left."""
    launch = shadow.copy().launch(Wish(FIRST, primer, id_slot))
    return launch is not None and launch.foreign


def gathering(length: int, prices: Prices) -> float:
    """Seconds for which a prompt of `length` tokens waits for others that are still being read."""
    return min(LONGEST_GATHER, GATHER * length * prices.evaluate / 1000)
