"""Text that tokenises well everywhere: plain words, simple code, tool definitions.

Sizes are in tokens of WordTokenizer; real vocabularies need a few percent more.
"""

from __future__ import annotations

import math
import random
from functools import cache
from pathlib import Path

from traffic.request import Tool

WORDS = Path(__file__).with_name("words.txt")  # a list of its own: a seed means the same text for good
FOREIGN = (
    "привет мир память слово дерево река",
    "καλημέρα κόσμος λόγος θάλασσα",
    "こんにちは世界 記憶 言葉",
    "你好 世界 缓存 前缀 模型",
    "مرحبا بالعالم ذاكرة كلمة",
    "🌲 🌊 naïve café Größe żółw",
)


@cache
def words() -> tuple[str, ...]:
    """Common words: one token each, or nearly so, in any vocabulary, the tiny model's included."""
    return tuple(WORDS.read_text(encoding="utf-8").split())


class Writer:
    """Writes the texts of one session, reproducibly, in sizes times `scale`.

    `random` decides what the session does and how much it says, a second stream which words: so neither the scale nor
    the length of answers changes what is asked, by whom and in which order.
    """

    def __init__(self, seed: int, name: str, scale: float) -> None:
        self.random = random.Random(f"{seed}/{name}")
        self._words = random.Random(f"{seed}/{name}/words")
        self.scale = scale

    def size(self, low: int, high: int) -> int:
        """A size between two, scaled, in tokens."""
        return max(1, round(self.random.randint(low, high) * self.scale))

    def prose(self, low: int, high: int) -> str:
        """Sentences of `low` to `high` tokens before scaling."""
        left = self.size(low, high)
        sentences = []
        while left > 0:
            length = min(left, self._words.randint(6, 14))
            sentences.append(" ".join(self._words.choices(words(), k=length - 1)) + ".")
            left -= length
        return " ".join(sentences).strip()

    def varied(self, low: int, high: int) -> str:
        """Prose of `low` to `high` tokens before scaling, short ones as likely as long ones, some of it not English."""
        size = round(math.exp(self.random.uniform(math.log(low), math.log(high))))
        text = self.prose(size, size)
        return f"{text} {self._words.choice(FOREIGN)}" if self.random.random() < 0.15 else text

    def phrase(self, count: int) -> str:
        """`count` words, never scaled."""
        return " ".join(self._words.choices(words(), k=count))

    def code(self, low: int, high: int) -> str:
        """Short functions, of about `low` to `high` tokens before scaling."""
        left = self.size(low, high)
        lines = []
        while left > 0:
            name, value, other = self._words.sample(words(), k=3)
            lines.append(f"def {name}({value}, {other}):\n    return {value} + {other}.{name}({value})\n")
            left -= 23
        return "\n".join(lines)

    def tools(self, count: int, low: int, high: int) -> tuple[Tool, ...]:
        """Tool definitions, each with a description of `low` to `high` tokens before scaling."""
        names = self._words.sample(words(), k=2 * count)
        return tuple(
            {
                "type": "function",
                "function": {
                    "name": f"{verb}_{noun}",
                    "description": self.prose(low, high),
                    "parameters": {
                        "type": "object",
                        "properties": {noun: {"type": "string", "description": self.phrase(6)}},
                        "required": [noun],
                    },
                },
            }
            for verb, noun in zip(names[::2], names[1::2], strict=True)
        )
