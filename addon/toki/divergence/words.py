"""The words that carry a fact whatever stands around them: negations, opposites, degrees, numbers; and which language.

Lexicons, not grammars: a word that is missing here is left to the embedding.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from functools import cache

WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")

# Small words by which a language is told from others that share its letters.
_SMALL_WORDS: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "en": "the a an is are was were be been of and to in on at for with that this it its you your we our they "
        "he she his her not by from as has have had do does will can there which who what i my me them if or but so how "
        "when where any some than then here please would should could about into over after before only also lives",
        "de": "der die das den dem des ein eine einen einem einer ist sind war waren und zu im in auf für mit dass es "
        "sie wir ihr nicht von als hat haben wird kann am vom zum zur um sich auch ich du er mich dir mein bitte wie "
        "wenn oder aber noch nur nach bei aus über lebt guten gut heute",
        "fr": "le la les un une des du de est sont était et à au aux en sur pour avec que ce cette il elle nous vous "
        "ne pas par dans a ont qui se sa son l d",
        "es": "el la los las un una unos de del es son era y a al en por para con que este esta no su se lo está "
        "hay tiene como más",
        "it": "il lo la i gli le un una di del della è sono era e a al alla in su per con che questo non si da nel "
        "ha hanno come più",
        "pt": "o a os as um uma de do da dos é são era e em no na nos nas está por para com que este esta não se seu ao há "
        "tem mais pelo pela",
        "nl": "de het een is zijn was waren en van te in op voor met dat dit niet er aan bij om ook heeft wordt je",
        "pl": "i w na z do jest są nie się że to o po dla od jak ale",
        "sv": "och i att det som en ett är på för med av inte den till har om",
        "ru": "и в на с не что это как по из к у за от для он она они мы вы был есть о",
        "uk": "і в на з не що це як по із до у за від для він вона вони ми ви був є та",
    }.items()
}
_SCRIPTS = {
    "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "CJK": "zh", "ARABIC": "ar", "DEVANAGARI": "hi",
    "GREEK": "el", "HEBREW": "he", "THAI": "th", "CYRILLIC": "ru",
}  # fmt: skip

_NEGATIONS: Mapping[str, re.Pattern[str]] = {
    language: re.compile(pattern, re.IGNORECASE)
    for language, pattern in {
        "en": r"\w+n['’]t\b|\b(?:not|no(?![.,!])|never|none|nobody|nothing|nowhere|neither|cannot|without)\b|\btoo \w+ to\b",
        "de": r"\b(?:nicht|kein\w*|nie|niemals|niemand\w*|nichts|ohne|weder|nein|keineswegs)\b",
        "fr": r"\b(?:pas|jamais|aucun\w*|rien|personne|sans|non)\b|\bni\b(?=.*\bni\b)",
        "es": r"\b(?:no|nunca|jamás|ningun\w*|ningún|nada|nadie|sin|tampoco)\b",
        "it": r"\b(?:non|mai|nessun\w*|niente|nulla|senza|no)\b",
        "pt": r"\b(?:não|nunca|nenhum\w*|nada|ninguém|sem|jamais)\b",
        "nl": r"\b(?:niet|geen|nooit|niemand|niets|zonder|nee)\b",
        "pl": r"\b(?:nie|nigdy|bez|żad\w+|nikt|nic)\b",
        "sv": r"\b(?:inte|ingen|inget|inga|aldrig|utan|nej)\b",
        "ru": r"\b(?:не|нет|никогда|ничего|никто|без|нельзя)\b",
        "uk": r"\b(?:не|ні|немає|ніколи|нічого|ніхто|без)\b",
        "zh": r"不(?![但仅過过同])|没|沒|无法|無法|未[^来來]|别[^的人]|禁止",
        "ja": r"ない|ません|なかっ|なく(?!て?は)|ずに|いいえ|禁止",
        "ko": r"않|못[하했한]|없|아니|지\s?마",
        "ar": r"\b(?:لا|لم|لن|ليس|ليست|غير|بدون)\b",
        "hi": r"नहीं|\bमत\b|बिना",
        "el": r"\b(?:δεν|μην|δε|όχι|ποτέ|χωρίς)\b",
        "he": r"\b(?:לא|אין|בלי|אל)\b",
        "th": r"ไม่|อย่า",
    }.items()
}
_NOT_NEGATIONS = re.compile(r"\bnot only\b|\bno doubt\b|\bno problem\b|\bwhy not\b|\bwhether or not\b", re.IGNORECASE)

_OPPOSITES = frozenset(
    frozenset(pair.split("/"))
    for pair in (
        "true/false yes/no on/off open/closed open/close opens/closes opened/closed increase/decrease "
        "increases/decreases increased/decreased rise/fall rises/falls rose/fell up/down hot/cold warm/cold left/right "
        "before/after above/below over/under more/less more/fewer most/least higher/lower larger/smaller bigger/smaller "
        "longer/shorter faster/slower older/younger older/newer earlier/later always/never safe/unsafe safe/dangerous "
        "possible/impossible legal/illegal allowed/forbidden allowed/prohibited allow/forbid allows/forbids "
        "permit/forbid permits/forbids enable/disable enabled/disabled enables/disables accept/reject accepted/rejected "
        "accepts/rejects win/lose won/lost wins/loses buy/sell buys/sells bought/sold push/pull start/stop starts/stops "
        "begin/end begins/ends first/last first/second north/south east/west inside/outside early/late full/empty "
        "present/absent success/failure succeeded/failed succeeds/fails success/error valid/invalid correct/incorrect "
        "right/wrong good/bad best/worst better/worse easy/difficult easy/hard light/dark light/shade sun/shade light/heavy with/without "
        "include/exclude includes/excludes included/excluded maximum/minimum max/min ascending/descending "
        "add/remove adds/removes added/removed add/subtract plus/minus public/private healthy/unhealthy "
        "likely/unlikely necessary/unnecessary agree/disagree agreed/disagreed agrees/disagrees appear/disappear "
        "everyone/nobody everything/nothing someone/nobody all/none dead/alive married/divorced male/female men/women "
        "man/woman boy/girl father/mother brother/sister son/daughter he/she him/her his/her morning/evening "
        "day/night today/tomorrow today/yesterday tomorrow/yesterday summer/winter lend/borrow lends/borrows "
        "teach/learn cheap/expensive cheaper/dearer strong/weak stronger/weaker wet/dry high/low tall/short long/short "
        "fast/slow old/new young/old rich/poor near/far positive/negative gain/loss profit/loss gained/lost "
        "import/export imports/exports upload/download read/write arrive/depart arrives/departs enter/leave "
        "guilty/innocent approved/denied approved/rejected toxic/harmless synchronous/asynchronous "
        "mutable/immutable stable/unstable hat/hatte"
    ).split()
) - {frozenset({"hat", "hatte"})}

# A word's family and its place there. Within one sentence another place in the same family is another claim.
_DEGREES: Mapping[str, tuple[str, str]] = {
    word: (family, place)
    for family, places in {
        "certainty": {
            "open": "may might maybe perhaps possibly probably likely presumably supposedly allegedly reportedly",
        },
        "duty": {
            "must": "must required mandatory compulsory obligatory",
            "should": "should ought recommended advisable",
            "may": "optional voluntary",
        },
        "share": {
            "all": "all every each always entirely completely everyone everybody everything",
            "most": "most mostly usually generally majority",
            "some": "some sometimes occasionally several partly partially certain",
            "few": "few rarely seldom hardly barely scarcely",
        },
    }.items()
    for place, words in places.items()
    for word in words.split()
}

_UNITS_TO_NUMBERS = {
    "en": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen",
    "de": "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
    "siebzehn achtzehn neunzehn",
    "fr": "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept "
    "dix-huit dix-neuf",
    "es": "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis "
    "diecisiete dieciocho diecinueve",
    "it": "zero uno due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici sedici "
    "diciassette diciotto diciannove",
    "pt": "zero um dois três quatro cinco seis sete oito nove dez onze doze treze catorze quinze dezesseis dezessete "
    "dezoito dezenove",
    "nl": "nul een twee drie vier vijf zes zeven acht negen tien elf twaalf dertien veertien vijftien zestien "
    "zeventien achttien negentien",
    "ru": "ноль один два три четыре пять шесть семь восемь девять десять одиннадцать двенадцать тринадцать "
    "четырнадцать пятнадцать шестнадцать семнадцать восемнадцать девятнадцать",
}
_TENS = {
    "en": "twenty thirty forty fifty sixty seventy eighty ninety",
    "de": "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    "fr": "vingt trente quarante cinquante soixante soixante-dix quatre-vingts quatre-vingt-dix",
    "es": "veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa",
    "it": "venti trenta quaranta cinquanta sessanta settanta ottanta novanta",
    "pt": "vinte trinta quarenta cinquenta sessenta setenta oitenta noventa",
    "nl": "twintig dertig veertig vijftig zestig zeventig tachtig negentig",
    "ru": "двадцать тридцать сорок пятьдесят шестьдесят семьдесят восемьдесят девяносто",
}
_OTHERS = {
    "en": {"dozen": 12, "both": 2, "twice": 2, "couple": 2, "pair": 2, "thrice": 3},
    "de": {"ein": 1, "eine": 1, "zwo": 2, "beide": 2, "dutzend": 12},
    "fr": {"une": 1, "vingts": 20, "quatre-vingt": 80, "douzaine": 12},
    "es": {"un": 1, "una": 1, "veintiuno": 21, "veintidós": 22, "veintitrés": 23, "veinticinco": 25, "docena": 12},
    "it": {"un": 1, "una": 1, "ventuno": 21, "ventidue": 22, "venticinque": 25},
    "pt": {"uma": 1, "duas": 2, "dúzia": 12},
    "nl": {},
    "ru": {"одна": 1, "одно": 1, "две": 2, "двух": 2, "трёх": 3, "трех": 3, "четырёх": 4, "пяти": 5},
}
_SCALES = {
    "en": {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9},
    "de": {"hundert": 100, "tausend": 1000, "million": 10**6, "millionen": 10**6, "milliarde": 10**9},
    "fr": {"cent": 100, "cents": 100, "mille": 1000, "million": 10**6, "millions": 10**6, "milliard": 10**9},
    "es": {"cien": 100, "ciento": 100, "mil": 1000, "millón": 10**6, "millones": 10**6},
    "it": {"cento": 100, "mille": 1000, "mila": 1000, "milione": 10**6, "milioni": 10**6},
    "pt": {"cem": 100, "cento": 100, "mil": 1000, "milhão": 10**6, "milhões": 10**6},
    "nl": {"honderd": 100, "duizend": 1000, "miljoen": 10**6},
    "ru": {"сто": 100, "тысяча": 1000, "тысячи": 1000, "тысяч": 1000, "миллион": 10**6, "миллиона": 10**6},
}
# Articles and pronouns as much as numbers: they may be counted or not.
LIGHT = frozenset("one ein eine eins een un une uno una um uma один одна одно both pair couple once".split())
ORDINALS = {
    word: number
    for number, words in enumerate(
        "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split(), 1
    )
    for word in words.split()
}


@cache
def number_words(language: str) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The words for numbers of a language: those that are added up, and those that multiply what stood before."""
    if language not in _UNITS_TO_NUMBERS:
        return {}, {}
    small = {word: number for number, word in enumerate(_UNITS_TO_NUMBERS[language].split())}
    small |= {word: 10 * number for number, word in enumerate(_TENS[language].split(), 2)}
    small |= _OTHERS[language]
    if language == "de":
        units = [(word, n) for word, n in small.items() if 1 < n < 10] + [("ein", 1)]
        tens = [(word, n) for word, n in small.items() if 20 <= n < 100]
        small |= {f"{unit}und{ten}": n + m for unit, n in units for ten, m in tens}
    return small, _SCALES[language]


def language_of(text: str) -> str:
    """The language of `text` as a two-letter code, by its script and its small words; "" where neither tells."""
    scripts: Counter[str] = Counter()
    for character in text:
        if character.isalpha():
            scripts[unicodedata.name(character, "LATIN").split()[0].partition("-")[0]] += 1
    if not scripts:
        return ""
    total = sum(scripts.values())
    if scripts["HIRAGANA"] + scripts["KATAKANA"] > 0.1 * total:
        return "ja"
    script, count = scripts.most_common(1)[0]
    if script not in ("LATIN", "CYRILLIC") and count > 0.3 * total:
        return _SCRIPTS.get(script, script.lower())
    words = [word.casefold() for word in WORD.findall(text.replace("'", " ").replace("’", " "))]
    if all(len(word) == 1 for word in words):  # the name of an option, a variable
        return ""
    cyrillic = script == "CYRILLIC"
    if cyrillic:
        return "uk" if re.search("[іїєґ]", text.casefold()) else "ru"
    scores = Counter(
        {
            language: sum(word in small or word in number_words(language)[0] for word in words)
            for language, small in _SMALL_WORDS.items()
        }
    )
    (best, hits), (_, next_hits) = scores.most_common(2)
    return best if hits >= max(2, 0.15 * len(words)) or hits > next_hits == 0 else ""


def negations(text: str, language: str) -> int:
    """How often `text` negates something; 0 in a language that is not known here."""
    pattern = _NEGATIONS.get(language or "en")
    return len(pattern.findall(_NOT_NEGATIONS.sub(" ", text))) if pattern else 0


def knows_negation(language: str) -> bool:
    return (language or "en") in _NEGATIONS


def opposite(one: str, other: str) -> bool:
    """Whether two English words (casefolded) are opposites, by a list or by a prefix that negates."""
    if frozenset((one, other)) in _OPPOSITES:
        return True
    long, short = (one, other) if len(one) > len(other) else (other, one)
    return len(short) > 3 and any(
        long == prefix + short for prefix in ("un", "in", "im", "il", "ir", "dis", "non", "non-")
    )


def degrees(words: list[str]) -> dict[str, frozenset[str]]:
    """Of each family of degrees (certainty, duty, share), the places that `words` (casefolded) name."""
    found: dict[str, set[str]] = {}
    for word in words:
        if word in _DEGREES:
            family, place = _DEGREES[word]
            found.setdefault(family, set()).add(place)
    return {family: frozenset(places) for family, places in found.items()}


def small_word(word: str) -> bool:
    """Whether a word (casefolded) only holds others together, in any of the languages here."""
    return any(word in small for small in _SMALL_WORDS.values())
