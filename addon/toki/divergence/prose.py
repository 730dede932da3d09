"""Do two pieces of prose say the same? What an embedding is blind to is compared exactly, sentence by sentence."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

from toki.divergence.meaning import Embedding
from toki.divergence.meaning import Meaning
from toki.divergence.quantities import Quantity
from toki.divergence.quantities import is_month
from toki.divergence.quantities import is_unit
from toki.divergence.quantities import quantities
from toki.divergence.quantities import unmatched
from toki.divergence.words import ORDINALS
from toki.divergence.words import WORD
from toki.divergence.words import degrees
from toki.divergence.words import knows_negation
from toki.divergence.words import language_of
from toki.divergence.words import negations
from toki.divergence.words import number_words
from toki.divergence.words import opposite
from toki.divergence.words import small_word

CLOSE = 0.5  # share of stems from which two sentences are versions of one
# The least cosine of a text and its translation, by multilingual-e5-small.
TRANSLATED = 0.868
TRANSLATED_LENGTH = 2.6  # by how much the lengths of a text and its translation may differ, weighed by script

WINDOW = 7  # words on each side of one in whose place another one stands

_IDEOGRAPH = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
_MARKUP = re.compile(
    r"\*\*|__|~~|`+|^\s{0,3}#{1,6}\s+|^\s*>\s?|\\(?=[*_#`])|</?(?:b|i|em|strong|p|br|code)\s*/?>", re.M
)
_EMPHASIS = re.compile(r"(?<![\w*])\*(?=\S)([^*\n]+)(?<=\S)\*(?![\w*])|(?<![\w_])_(?=\S)([^_\n]+)(?<=\S)_(?![\w_])")
_LINK = re.compile(r"\[([^\]\n]+)\]\(([^)\s]+)\)")
_RULE = re.compile(r"^[ \t]*(?:[-*_][ \t]*){3,}$|^[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*\|)+[ \t]*:?-*:?[ \t]*$", re.M)
_BULLET = re.compile(r"^\s*[-*+•·–]\s+")
_NUMBERED = re.compile(r"^\s*(?:step\s+)?\(?(\d{1,2}|[a-h])[.):]\s+", re.I)
_SENTENCE = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|(?<=[。！？।؟])\s*|;\s+")
_ABBREVIATION = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|No|vs|etc|e\.g|i\.e|z\.B|a\.m|p\.m|[A-Z])\.$")
_IDENTIFIER = re.compile(
    r"https?://[^\s)>\]]+|[\w.+-]+@[\w-]+\.\w+|(?<![\w/])(?:\.{0,2}/|(?=\S+/\S+/|\S+\.))(?:[\w.-]+/)+[\w.-]*\w|\b\w+\.(?:py|js|ts|json|md|txt|"
    r"csv|html|css|c|h|rs|go|sh|yaml|yml|toml|png|jpg|pdf|com|org|net|io)\b|\b\w*[a-z]_[a-z]\w*\b|\b[a-z]+[A-Z]\w*\b"
    r"|\b\w+\(\)|(?<!\w)--?[a-z][\w-]*\b|\b(?=\w*[A-Za-z])(?=\w*\d)(?!\d+(?:st|nd|rd|th|k|m|s|h|km|cm|mm|kg|g|l|ml|am|pm|gb|mb|"
    r"kb|tb|ms|kw|w|v)\b)[A-Za-z]\w+\b|\b0x[\da-f]+\b|\b[A-Za-z]\w*(?:\+\+|#)(?!\w)",
    re.I,
)
_OPERATION = re.compile(  # what stands left of it, and right of it
    r"(?<![\w.])([\w.]+|[)\]])[ \t]*(\*\*|//|==|!=|<=|>=|&&|\|\||[+*^=<>%×·÷≤≥≠])[ \t]*(?=(-?[\w.]+|[(\[]))"
    r"|(?<![\w./-])(\w{1,3})[ \t]*([-/])[ \t]*(?=(\w{1,3})(?![\w/-]))"  # else it is a hyphen, a slash, a dash, a date
)
_SAME_OPERATOR = {"×": "*", "·": "*", "÷": "/", "≤": "<=", "≥": ">=", "≠": "!="}
_MARK_OF_YES_OR_NO = re.compile("([✅✔☑👍])|[❌✘✖👎]")
_CAMEL = re.compile(r"[a-z][A-Z]")
_TOKEN = re.compile(rf"{_IDEOGRAPH.pattern}|(?:(?!{_IDEOGRAPH.pattern})[^\W_])+(?:['-][^\W_]+)*")
_ITEM = r"(?:(?:a|an|the|some|one|my|your|ein|eine|un|une|una|le|la|el) )?[\w'-]+"
_LIST = re.compile(
    rf"\b{_ITEM}(?:, {_ITEM})*,? (?:and|or|und|oder|et|ou|y|o|e|en|of|и|или) {_ITEM}\b|\b{_ITEM}(?:, {_ITEM}){{2,}}\b"
)
_LIST_BREAK = re.compile(r",? (?:and|or|und|oder|et|ou|y|o|e|en|of|и|или) |, ")
_YES_OR_NO = re.compile(r"\s*(yes|no|true|false|ja|nein|oui|non|sí|да|нет|はい|いいえ)\b", re.I)
_SEQUENCE = re.compile(r"\b(?:then|next|afterwards|after that|finally|lastly|first|second|before|later)\b", re.I)
_FILLER = re.compile(
    r"(?:sure|certainly|of course|absolutely|okay|ok|alright|great question|good question|thanks for asking|"
    r"no problem|gladly|i'm happy to help|i'd be glad to help|happy to help|i'd be happy to help|here you go|here it is|you're welcome|"
    r"(?:here(?:'s| is| are)|below (?:is|are)|the following (?:is|are))\b.*:|"
    r"(?:please )?let me know if .*|(?:i )?hope (?:this|that|it) helps.*|feel free to .*|"
    r"is there anything else .*|do you have (?:any )?(?:other|more|further) questions.*)[.!?,]*",
    re.I,
)
_LEAD_IN = re.compile(
    r"^(?:sure|certainly|of course|absolutely|okay|ok|well|yes, of course|great question|i think(?: that)?|"
    r"i believe(?: that)?|in my opinion|basically|actually|in short|in summary|to sum up|overall|note that|"
    r"the answer is|answer|here(?:'s| is)[^:.]{0,40}(?=:))(?:[,:!]\s+|\s+(?=that\b|[a-z\d]))",
    re.I,
)
_DAYS_AND_MONTHS = frozenset(
    "monday tuesday wednesday thursday friday saturday sunday january february march april may june july august "
    "september october november december mon tue wed thu fri sat sun jan feb mar apr jun jul aug sep sept oct nov "
    "dec".split()
)
_ALSO_WORDS = frozenset({"may", "march", "mar", "sun", "sat"})
_NO_NAMES = frozenset(
    "i i'm i'll i've i'd ok okay mr mrs ms dr json html css url api sql http https cpu gpu ram am pm celsius fahrenheit".split()
)
_BESIDE_NUMBERS = frozenset("am pm degrees".split())
_ENDINGS = re.compile(r"(?:'s|’s|ing|edly|ed|ies|ly|es|s|e)$")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence or list item in plain text. `folded`: its words, casefolded; `step`: of a numbered list."""

    text: str
    folded: tuple[str, ...]
    stems: frozenset[str]
    item: bool
    step: bool


def difference(one: str, other: str, meaning: Meaning) -> str:
    """What two texts say differently, in a few words; "" where nothing was found."""
    marks = [[bool(yes) for yes in _MARK_OF_YES_OR_NO.findall(text)] for text in (one, other)]
    if marks[0] != marks[1] and len(marks[0]) == len(marks[1]):
        return "the opposite mark"
    plain = [_plain(text) for text in (one, other)]
    (ones, said), (others, also_said) = (_sentences(text) for text in plain)
    if not ones and not others and said and also_said:  # nothing but fillers on both sides
        return ""
    ones, others = ones or said, others or also_said
    one, other = ("\n".join(sentence.text for sentence in side) for side in (ones, others))
    return _Pair(one, other, ones, others, meaning).difference()


class _Pair:
    """Two texts while they are compared."""

    def __init__(
        self, one: str, other: str, ones: Sequence[Sentence], others: Sequence[Sentence], meaning: Meaning
    ) -> None:
        self.one, self.other, self.ones, self.others, self.meaning = one, other, ones, others, meaning
        self.languages = language_of(one), language_of(other)
        stems = [frozenset().union(*(s.stems for s in side)) for side in (ones, others)]
        self.translated = self.languages[0] != self.languages[1] and (
            "" not in self.languages or not stems[0] & stems[1]
        )
        self.language = self.languages[0] or self.languages[1] or "en"

    @cached_property
    def quantities(self) -> tuple[list[Quantity], list[Quantity]]:
        one, other = (language or self.language for language in self.languages)
        return quantities(self.one, one), quantities(self.other, other)

    @property
    def embedding(self) -> Embedding:
        return self.meaning.english if self.language == "en" else self.meaning.foreign

    def difference(self) -> str:
        rules = (
            (self._empty, self._numbers, self._identifiers, self._polarity, self._translation)
            if self.translated
            else (
                self._empty, self._numbers, self._identifiers, self._operators, self._names, self._answered,
                self._asked, self._same_words, self._cut, self._versions, self._polarity, self._rest,
            )
        )  # fmt: skip
        for rule in rules:
            found = rule()
            if found is not None:
                return found
        return ""

    # Each rule tells a difference, "" for "the same, ask no further", or None: it can't tell.

    def _empty(self) -> str | None:
        if not self.one.strip() or not self.other.strip():
            return "" if self.one.strip() == self.other.strip() else "a missing part: nothing is left of one text"
        return None

    def _numbers(self) -> str | None:
        one, other = self.quantities
        if missing := [*unmatched(one, other), *unmatched(other, one)]:
            return f"a changed number: {missing[0].raw:.16g}"
        return None

    def _identifiers(self) -> str | None:
        sides = [
            {found for found in _IDENTIFIER.findall(text) if not found.islower() or not found.isalpha()}
            for text in (self.one, self.other)
        ]
        if not self.translated:
            sides = [{found for found in side if _telling(found)} for side in sides]
        folded = [re.sub(r"\s", "", text.casefold()) for text in (self.one, self.other)]
        for side, text in ((sides[0], folded[1]), (sides[1], folded[0])):
            for found in side:
                if _telling(found) and found.casefold() not in text:
                    return f"a changed name: {found}"
        return None

    def _operators(self) -> str | None:
        """Whether another operator stands between the same two operands."""
        one, other = (_operations(text) for text in (self.one, self.other))
        for (left, right), operators in one.items():
            others = other.get((left, right), operators)
            if operators != others:
                return f"another operator: {left} {' '.join(sorted(operators ^ others))} {right}"
        return None

    def _names(self) -> str | None:
        if self.language == "de":  # where every noun has a capital
            return None
        dated = [any(q.dimension == "day of year" for q in side) for side in self.quantities]
        sides = _names(self.ones), _names(self.others)
        words = [WORD.findall(text) for text in (self.one, self.other)]
        for names, those in ((sides[0], words[1]), (sides[1], words[0])):
            for name in names:
                if all(dated) and is_month(name.casefold()):  # a date, which was compared
                    continue
                if not any(_same_name(name, word) for word in those) and not _initials(name, those):
                    return f"a changed name: {name}"
        return None

    def _answered(self) -> str | None:
        answers = [_YES_OR_NO.match(text) for text in (self.one, self.other)]
        if all(answers) and len({answer[1].casefold() for answer in answers if answer}) > 1:
            return "the opposite answer"
        return None

    def _asked(self) -> str | None:
        asked = [any(s.text.rstrip().endswith(("?", "？", "؟")) for s in side) for side in (self.ones, self.others)]
        return "a question in the place of a statement" if asked[0] != asked[1] else None

    def _same_words(self) -> str | None:
        """Texts of the same words: in the same order, or in another."""
        one, other = ([word for s in side for word in s.folded] for side in (self.ones, self.others))
        if one == other or self._numbers_aside(one) == self._numbers_aside(other):
            return ""
        listed = [Counter(_lists(s) for s in side) for side in (self.ones, self.others)]
        if listed[0] != listed[1] and (numbers := _exchanged_numbers(one, other)):
            return f"numbers exchanged: {numbers}"
        if Counter(one) != Counter(other):
            return None
        if listed[0] == listed[1]:
            if all(_lists(a) == _lists(b) for a, b in zip(self.ones, self.others, strict=True)):
                return ""
            if all(s.step for s in (*self.ones, *self.others) if s.item) and any(s.step for s in self.ones):
                return "steps in another order"
            return "steps in another order" if _SEQUENCE.search(self.one) else ""
        return self._exchanged()

    def _numbers_aside(self, words: Sequence[str]) -> object:
        """What a text says beside its numbers; `words` itself where the numbers stand in another order."""
        one, other = self.quantities
        if len(one) != len(other) or not all(a.equals(b) for a, b in zip(one, other, strict=True)):
            return id(words)
        small, scales = number_words(self.language)
        return [
            w
            for w in words
            if not (
                _numeral(w)
                or is_unit(w)
                or w in _BESIDE_NUMBERS
                or all(part in small or part in scales for part in w.split("-"))
            )
        ]

    def _exchanged(self) -> str | None:
        """Whether a word stands where another one stood: the same words, said of each other."""
        places = [_places([w for s in side for w in _TOKEN.findall(_lists(s))]) for side in (self.ones, self.others)]
        for place, word in places[0].items():
            if word and places[1].get(place, word) not in ("", word):
                return f"words exchanged: {word}"
        return None

    def _cut(self) -> str | None:
        """Whether one text is the beginning of the other."""
        sides = ("".join(word for s in side for word in s.folded) for side in (self.ones, self.others))
        short, long = sorted(sides, key=len)
        rest = long.removeprefix(short)
        cut = rest not in ("", long) and not is_unit(rest)
        return "a missing part: one text is the beginning of the other" if cut else None

    def _versions(self) -> str | None:
        """Sentence by sentence, where two are versions of one."""
        for one in self.ones:
            other = max(self.others, key=lambda s: _shared(one, s))
            if _shared(one, other) < CLOSE:
                continue
            if found := self._version(one, other):
                return found
        return None

    def _version(self, one: Sentence, other: Sentence) -> str | None:
        if self.language == "en":
            sides = degrees([*one.folded]), degrees([*other.folded])
            for family in {*sides[0], *sides[1]}:
                here, there = (side.get(family, frozenset()) for side in sides)
                if here != there and (family == "certainty" or (here and there)):
                    return f"another degree of {family}"
        left, right = ([*one.folded], [*other.folded])
        swaps: list[tuple[int, int]] = []  # places of words that stand for each other
        for kind, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
            if kind == "replace" and b - a == d - c:
                swaps += zip(range(a, b), range(c, d), strict=True)
        flips = abs(negations(one.text, self.language) - negations(other.text, self.language))
        gone, come = Counter(left) - Counter(right), Counter(right) - Counter(left)
        if self.language == "en":
            plain = [word for word in gone if not negations(word, "en")]
            flips += sum(any(opposite(word, new) and not negations(new, "en") for new in come) for word in plain)
        if flips % 2:
            return "the opposite"
        embedding = self.meaning.swaps
        more = [[word for word in words if not small_word(word)] for words in (gone.elements(), come.elements())]
        one_says_more = bool(more[0]) != bool(more[1])
        if one_says_more and (
            _also(left, right) or embedding.cosines([one.text], [other.text])[0, 0] < embedding.limits.added
        ):
            return f"a missing part: {' '.join(*filter(None, more))}"
        for a, c in swaps:
            word, new = left[a], right[c]
            if small_word(word) or small_word(new) or _stem(word) in other.stems or _stem(new) in one.stems:
                continue
            if _numeral(word) or _numeral(new):
                continue
            if embedding.cosines([_around(left, a)], [_around(right, c)])[0, 0] < embedding.limits.swap:
                return f"another word: {word}, {new}"
        return None

    def _polarity(self) -> str | None:
        """Whether one text negates and the other does not, where sentences could not be matched."""
        first, second = self.languages[0] or self.language, self.languages[1] or self.language
        if not (knows_negation(first) and knows_negation(second)):
            return None
        negated = [
            sum(negations(s.text, language) > 0 for s in side)
            for side, language in ((self.ones, first), (self.others, second))
        ]
        if (negated[0] > 0) == (negated[1] > 0):
            return None
        words = [{word for s in side for word in s.folded} for side in (self.ones, self.others)]
        if not self.translated and any(opposite(a, b) for a in words[0] - words[1] for b in words[1] - words[0]):
            return None
        return "a negation"

    def _translation(self) -> str | None:
        lengths = [_weight(text) for text in (self.one, self.other)]
        if max(lengths) > TRANSLATED_LENGTH * min(lengths):
            return "a missing part in the translation"
        embedding = self.meaning.translations
        if embedding is None:
            return ""
        cosine = float(embedding.cosines([self.one], [self.other])[0, 0])
        if cosine < TRANSLATED:
            return f"no translation: cosine {cosine:.2f}"
        return self._uncovered(embedding)

    def _rest(self) -> str | None:
        embedding = self.embedding
        cosine = float(embedding.cosines([self.one], [self.other])[0, 0])
        if cosine < embedding.limits.whole:
            return f"another meaning: cosine {cosine:.2f}"
        return self._uncovered(embedding)

    def _uncovered(self, embedding: Embedding) -> str | None:
        """A sentence that has no counterpart in the other text: alone, or with its neighbour."""
        sides = [[s.text for s in side] for side in (self.ones, self.others)]
        if max(map(len, sides)) == 1:
            return None
        wholes = [[*side, *(" ".join(side[n : n + 2]) for n in range(len(side) - 1))] for side in sides]
        cosines = embedding.cosines(*wholes)
        for side, best in ((sides[0], cosines.max(axis=1)), (sides[1], cosines.max(axis=0))):
            for text, cosine in zip(side, best, strict=False):
                if cosine < embedding.limits.part:
                    return f"a missing part: {text[:60]} (cosine {cosine:.2f})"
        return None


def _plain(text: str) -> str:
    """`text` without what only a display shows: markup, kinds of quotes, dashes and spaces, emoji."""
    text = unicodedata.normalize("NFKC", text)
    text = text.translate(_TYPES)
    text = "".join(c for c in text if unicodedata.category(c) not in ("So", "Cf", "Sk") or c == "°")
    text = _RULE.sub("", text)
    text = _LINK.sub(r"\1 \2", text)
    text = _EMPHASIS.sub(lambda match: match[1] or match[2], _MARKUP.sub("", text))
    return re.sub(r"[ \t]*(?<!\|)\|(?!\|)[ \t]*", " ", text)


_TYPES = str.maketrans(
    {"“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "‘": "'", "’": "'", "‚": "'", "–": "-", "—": "-", "…": "...",
     "−": "-", "\ufffc": " "}
)  # fmt: skip


def _sentences(text: str) -> tuple[list[Sentence], list[Sentence]]:
    """The sentences and list items that say something, and all of them."""
    found: list[Sentence] = []
    for line in text.splitlines():
        bullet, numbered = _BULLET.match(line), _NUMBERED.match(line)
        mark = bullet or numbered
        rest = line[mark.end() :] if mark else line
        held = ""
        for piece in _SENTENCE.split(rest.strip()):
            held = f"{held} {piece}".strip()
            if _ABBREVIATION.search(held):
                continue
            if held:
                found.append(_sentence(held, item=bool(mark), step=bool(numbered)))
            held = ""
        if held:
            found.append(_sentence(held, item=bool(mark), step=bool(numbered)))
    kept = [sentence for sentence in found if not _FILLER.fullmatch(sentence.text.strip())]
    return kept, found


def _sentence(text: str, *, item: bool, step: bool) -> Sentence:
    lead = _LEAD_IN.match(text)
    text = text[lead.end() :] if lead and len(text) > lead.end() else text
    folded = tuple(match.casefold() for match in _TOKEN.findall(_expanded(text)))
    stems = frozenset(_stem(word) for word in folded if not small_word(word)) or frozenset(folded)
    return Sentence(text, folded, stems, item, step)


def _expanded(text: str) -> str:
    """Contractions written out, and "in order to" made short."""
    text = re.sub(r"\bin order to\b", "to", text, flags=re.I)
    text = re.sub(r"\bcan't\b|\bcannot\b", "can not", text, flags=re.I)
    text = re.sub(r"\bwon't\b", "will not", text, flags=re.I)
    text = re.sub(r"n't\b", " not", text, flags=re.I)
    text = re.sub(r"\b(it|he|she|that|there|what|who|here|where)'s\b", r"\1 is", text, flags=re.I)
    text = re.sub(r"'re\b", " are", text, flags=re.I)
    text = re.sub(r"'ll\b", " will", text, flags=re.I)
    text = re.sub(r"'ve\b", " have", text, flags=re.I)
    return re.sub(r"\bi'm\b", "i am", text, flags=re.I)


def _stem(word: str) -> str:
    short = _ENDINGS.sub("", word)
    return short if len(short) > 2 else word


def _shared(one: Sentence, other: Sentence) -> float:
    """The share of stems that two sentences have in common, of the larger one's."""
    return len(one.stems & other.stems) / max(len(one.stems), len(other.stems), 1)


def _lists(sentence: Sentence) -> str:
    """A sentence with the items of lists inside it in a fixed order."""
    text = re.sub(r"[^\w\s,'-]", "", sentence.text.casefold())
    return _LIST.sub(lambda match: " & ".join(sorted(_LIST_BREAK.split(match[0]))), text)


def _around(words: Sequence[str], place: int) -> str:
    """The words around a place, as a text."""
    near = words[max(0, place - WINDOW) : place + WINDOW + 1]
    return ("" if _IDEOGRAPH.fullmatch(words[place]) else " ").join(near)


def _also(left: Sequence[str], right: Sequence[str]) -> bool:
    """Whether one of two versions has an item more, behind a conjunction."""
    for kind, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if kind in ("insert", "delete") and {*left[a:b], *right[c:d]} & {"and", "or", "und", "oder", "et", "ou"}:
            return True
    return False


def _places(words: Sequence[str]) -> dict[tuple[str, str], str]:
    """Which word stands between which two others; "" where several do."""
    found: dict[tuple[str, str], str] = {}
    padded = ["", *words, ""]
    for before, word, after in zip(padded, padded[1:], padded[2:], strict=False):
        if not small_word(word) or word in ("he", "she", "i", "you"):
            found[before, after] = word if found.get((before, after), word) == word else ""
    return found


def _operations(text: str) -> dict[tuple[str, str], frozenset[str]]:
    """The operators that stand between each two operands."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    for match in _OPERATION.finditer(text):
        left, operator, right = (part for part in match.groups() if part is not None)
        operands = left.casefold(), right.casefold().rstrip(".")
        found[operands] = found.get(operands, frozenset()) | {_SAME_OPERATOR.get(operator, operator)}
    return found


def _exchanged_numbers(one: Sequence[str], other: Sequence[str]) -> str:
    """The numbers that stand in another order among the same words; "" where that is not the difference."""
    rests = [[word for word in words if not _numeral(word)] for words in (one, other)]
    numbers = [[part for word in words if _numeral(word) for part in word.split("-")] for words in (one, other)]
    exchanged = rests[0] == rests[1] and numbers[0] != numbers[1] and Counter(numbers[0]) == Counter(numbers[1])
    return " ".join(numbers[0]) if exchanged else ""


def _telling(found: str) -> bool:
    letters = any(map(str.isalpha, found))  # else it is a number, which is compared as one
    return letters and bool(re.search(r"[\d_/@.()+#]|^-", found) or _CAMEL.search(found))


def _numeral(word: str) -> bool:
    return any(map(str.isdigit, word)) or word in ORDINALS


def _names(sentences: Sequence[Sentence]) -> list[str]:
    """Words with a capital that does not come from their place."""
    found = []
    for sentence in sentences:
        words = list(WORD.finditer(sentence.text))
        capitals = [match for match in words if match[0][0].isupper()]
        if len(words) > 3 and len(capitals) > 0.6 * len(words):  # a heading
            continue
        for match in capitals:
            before = sentence.text[: match.start()].rstrip()
            word = re.sub(r"['’]s$", "", match[0])
            starts = not before or before[-1] in ':"(“.!?[-'
            sure = not starts or word.isupper() or word.casefold() in _DAYS_AND_MONTHS - _ALSO_WORDS
            if len(word) == 1:
                sure = _is_label(word, before, sentence.text[match.end() :])
            if sure and word.casefold() not in _NO_NAMES:
                found.append(word)
    return found


def _is_label(letter: str, before: str, after: str) -> bool:
    """Whether a capital letter is the name of something (option A, vitamin C), and no article and no initial."""
    if re.match(r"\.\s*[A-Z]", after) or re.search(r"\b[A-Z]\.$", before):
        return False
    return bool(before.rstrip('("[')) and before[-1] not in ".!?:-" if re.match(r"\s+[a-z]", after) else True


def _same_name(name: str, word: str) -> bool:
    one, other = name.casefold(), re.sub(r"['’]s$", "", word.casefold())
    if one == other:
        return True
    short, long = sorted((one, other), key=len)
    if {one, other} <= _DAYS_AND_MONTHS:
        return long.startswith(short)
    return len(short) > 3 and any(long == short + ending for ending in ("s", "es", "ian", "ese", "ish"))


def _initials(name: str, words: Sequence[str]) -> bool:
    """Whether a name is the initials of what the other text spells out, or a part of what it abbreviates."""
    if name.isupper() and len(name) > 1:
        starts = "".join(word[0] for word in words if word[0].isupper())
        return name in starts
    return any(word.isupper() and len(word) > 1 and name[0] in word for word in words)


def _weight(text: str) -> float:
    """The length of a text, a character of Chinese, Japanese or Korean counting as three."""
    return sum(3.0 if c >= "\u2e80" else 1.0 for c in text if not c.isspace()) or 1.0
