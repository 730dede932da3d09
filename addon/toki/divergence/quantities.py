"""Numbers in a text, however they are written: 1,000 and 1000 and a thousand, 5 km and 5,000 m, 3 pm and 15:00."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

from toki.divergence.words import LIGHT
from toki.divergence.words import ORDINALS
from toki.divergence.words import number_words

LONGEST = 300  # digits of a number that is told from its next; beyond that all are infinite

_UNITS: dict[str, tuple[str, float]] = {
    alias: (dimension, factor)
    for dimension, units in {
        "metres": {
            "mm millimeter millimeters millimetre millimetres": 0.001,
            "cm centimeter centimeters centimetre centimetres zentimeter": 0.01,
            "m meter meters metre metres mètre mètres metro metros metri метр метра метров 米": 1.0,
            "km kilometer kilometers kilometre kilometres kilomètre kilomètres kilómetro kilómetros chilometri "
            "quilômetros км километр километра километров 公里 千米 キロ キロメートル": 1000.0,
            "inch inches": 0.0254,
            "ft foot feet": 0.3048,
            "mile miles meile meilen": 1609.344,
        },
        "grams": {
            "mg milligram milligrams": 0.001,
            "g gram grams gramm gramme grammes gramos grammi": 1.0,
            "kg kilogram kilograms kilo kilos kilogramm кг 公斤 千克": 1000.0,
            "ton tons tonne tonnes": 1e6,
            "lb lbs pound pounds": 453.592,
            "oz ounce ounces": 28.3495,
        },
        "seconds": {
            "ms millisecond milliseconds": 0.001,
            "s sec secs second seconds sekunde sekunden seconde secondes segundo segundos secondi секунд 秒": 1.0,
            "min mins minute minutes minuten minuto minutos minuti minut минут минуты 分钟 分": 60.0,
            "h hr hrs hour hours stunde stunden heure heures hora horas ora ore uur час часа часов 小时 時間": 3600.0,
            "day days tag tage tagen jour jours día días giorno giorni dia dias dag dagen день дня дней 天": 86400.0,
            "week weeks woche wochen semaine semaines semana semanas settimana settimane weken": 604800.0,
            "year years jahr jahre jahren an ans année années año años anno anni ano anos jaar год года лет": 31557600.0,
            "month months monat monate mois mes meses mese mesi mês maanden": 2629800.0,
        },
        "bytes": {
            "b byte bytes": 1.0,
            "kb kilobyte kilobytes": 1e3,
            "mb megabyte megabytes": 1e6,
            "gb gigabyte gigabytes": 1e9,
            "tb terabyte terabytes": 1e12,
            "kib": 1024.0,
            "mib": 1024.0**2,
            "gib": 1024.0**3,
        },
        "litres": {
            "ml milliliter milliliters millilitre millilitres": 0.001,
            "cl": 0.01,
            "l liter liters litre litres litro litros litri литр литра 升": 1.0,
            "gallon gallons": 3.78541,
            "cup cups": 0.236588,
        },
        "percent": {"% percent pct prozent pourcent процентов процента": 1.0},
        "celsius": {"°c celsius": 1.0},
        "fahrenheit": {"°f fahrenheit": 1.0},
        "usd": {"$ dollar dollars usd dólares долларов 美元": 1.0},
        "eur": {"€ euro euros eur евро 欧元 ユーロ": 1.0},
        "gbp": {"£ gbp sterling": 1.0},
        "jpy": {"¥ yen jpy 円": 1.0},
        "watts": {"w watt watts": 1.0, "kw kilowatt kilowatts": 1000.0, "mw megawatt megawatts": 1e6},
        "volts": {"v volt volts": 1.0},
    }.items()
    for aliases, factor in units.items()
    for alias in aliases.split()
}
_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            "january jan januar janvier enero gennaio janeiro januari января",
            "february feb februar février febrero febbraio fevereiro februari февраля",
            "march mar märz mars marzo março maart марта",
            "april apr avril abril aprile апреля",
            "may mai mayo maggio maio mei мая",
            "june jun juni juin junio giugno junho июня",
            "july jul juli juillet julio luglio julho июля",
            "august aug août agosto augustus августа",
            "september sep sept septembre septiembre settembre setembro сентября",
            "october oct oktober okt octobre octubre ottobre outubro октября",
            "november nov novembre noviembre novembro ноября",
            "december dec dezember dez décembre diciembre dicembre dezembro декабря",
        ),
        1,
    )
    for name in names.split()
}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))

_CLOCK = re.compile(
    r"(?<![\w.:])(?P<hour>[01]?\d|2[0-4])(?::(?P<minute>[0-5]\d)(?::[0-5]\d)?)?\s*(?P<half>[ap]\.?m\b\.?)?(?![\w:])",
    re.I,
)
_ISO_DATE = re.compile(r"(?<![\w./-])(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?![\w/-])")
_DAY_MONTH = re.compile(
    rf"(?<![\w.,])(\d{{1,2}})(?:st|nd|rd|th|\.|º|er)?\s+(?:of\s+|de\s+)?({_MONTH})\b\.?(?:,?\s+(?:de\s+)?(\d{{4}}))?",
    re.I,
)
_MONTH_DAY = re.compile(rf"\b({_MONTH})\b\.?\s+(\d{{1,2}})(?:st|nd|rd|th)?\b(?!\s*[:.]\d)(?:,?\s+(\d{{4}})\b)?", re.I)
_CHINESE_DATE = re.compile(r"(?:(\d{4})年)?(\d{1,2})月(\d{1,2})[日号]")
_DOTTED = re.compile(r"(?<![\w.])v?(\d+(?:\.\d+){2,})(?![\w])")
_POINT = (  # 1,234.5
    r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?:[ \u00a0\u202f'’_]\d{3})+(?:\.\d+)?(?!\d)|\d+(?:\.\d+)?(?:e[+-]?\d+)?"
)
_COMMA = (  # 1.234,5
    r"\d{1,3}(?:\.\d{3})+(?:,\d+)?(?!\d)|\d{1,3}(?:[ \u00a0\u202f'’_]\d{3})+(?:,\d+)?(?!\d)|\d+(?:[.,]\d+)?"
)
_TAIL = r"(?P<tail>\s?[%°$€£¥][cCfF]?|\s?[^\W\d_]+)?"
_NUMBER = {
    kind: re.compile(
        rf"(?<![\w.])(?P<sign>(?<![\w)\]])[-−])?(?P<money>[$€£¥]\s?)?(?<![\d.,])(?P<digits>{digits}){_TAIL}", re.I
    )
    for kind, digits in (("point", _POINT), ("comma", _COMMA))
}
_COMMA_LANGUAGES = frozenset({"de", "fr", "es", "it", "pt", "nl", "ru", "uk", "pl", "sv", "el"})
_CHINESE_DIGITS = {character: value for value, character in enumerate("零一二三四五六七八九")} | {"两": 2, "〇": 0}
_CHINESE_SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10_000, "亿": 10**8}
_CHINESE = re.compile(f"[{''.join(_CHINESE_DIGITS)}{''.join(_CHINESE_SCALES)}]+")
_WORDS = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*|\d+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its unit. `raw` as it was written, in `named` units; `value` in the base unit of `dimension`.

    Whole numbers are ints, however long. `light`: a word that is as much an article as a number.
    """

    value: float
    dimension: str
    raw: float
    named: str = ""
    light: bool = False

    def equals(self, other: Quantity) -> bool:
        """Whether both say the same. A unit that only one of them names is no contradiction."""
        if self.dimension == other.dimension:
            if isinstance(self.value, int) and isinstance(other.value, int):
                return self.value == other.value
            # Who converts units rounds.
            return math.isclose(self.value, other.value, rel_tol=1e-12 if self._scale == other._scale else 0.006)
        return self.raw == other.raw and "" in (self.dimension, other.dimension)

    @property
    def _scale(self) -> float:
        return _UNITS[self.named][1] if self.named in _UNITS else 1.0


def quantities(text: str, language: str) -> list[Quantity]:
    """All quantities of `text` in its order."""
    text = "".join(str(unicodedata.digit(c)) if unicodedata.category(c) == "Nd" else c for c in text)
    found: list[tuple[int, Quantity]] = []
    for finder in (_dates, _clocks, _dotted):
        for start, end, quantity in list(finder(text)):
            found.append((start, quantity))
            text = text[:start] + " " * (end - start) + text[end:]
    for start, end, quantity in list(_digits(text, language)):
        found.append((start, quantity))
        text = text[:start] + " " * (end - start) + text[end:]
    found += _chinese(text) if language in ("zh", "ja") else _words(text, language or "en")
    return [quantity for _, quantity in sorted(found, key=lambda entry: entry[0])]


def unmatched(one: Sequence[Quantity], other: Sequence[Quantity]) -> list[Quantity]:
    """Those of `one` that `other` does not say; articles and the like are forgiven."""
    return [q for q in one if not q.light and not any(q.equals(p) for p in other)]


def is_unit(word: str) -> bool:
    """Whether `word` (casefolded) names a unit."""
    return word in _UNITS


def is_month(word: str) -> bool:
    """Whether `word` (casefolded) names a month."""
    return word in _MONTHS


def _plain(value: float) -> Quantity:
    value = _bounded(value)
    return Quantity(value, "", value)


def _bounded(value: float) -> float:
    """What words can make so large that no float holds it is infinite."""
    return value if value < 10**LONGEST else math.inf


def _with_unit(value: float, unit: str) -> Quantity:
    value = _bounded(value)
    key = unit.strip()
    known = _UNITS.get(key) or _UNITS.get(key.casefold())
    if known is None:
        return _plain(value)
    dimension, factor = known
    return Quantity(value * factor, dimension, value, key if key in _UNITS else key.casefold())


def _dates(text: str) -> Iterator[tuple[int, int, Quantity]]:
    taken: list[tuple[int, int]] = []
    for pattern, order in ((_ISO_DATE, "ymd"), (_CHINESE_DATE, "ymd"), (_DAY_MONTH, "dmy"), (_MONTH_DAY, "mdy")):
        for match in pattern.finditer(text):
            if any(start < match.end() and match.start() < end for start, end in taken):
                continue
            parts = dict(zip(order, match.groups(), strict=True))
            month = parts["m"] or ""
            number = _MONTHS.get(month.casefold()) or int(month)
            taken.append(match.span())
            value = 100.0 * number + int(parts["d"] or 0)
            yield *match.span(), Quantity(value, "day of year", value)
            if parts["y"]:
                yield match.start(), match.end(), _plain(float(parts["y"]))


def _clocks(text: str) -> Iterator[tuple[int, int, Quantity]]:
    for match in _CLOCK.finditer(text):
        if match["minute"] is None and match["half"] is None:
            continue
        hour = int(match["hour"])
        if match["half"]:
            hour = hour % 12 + (12 if match["half"][0] in "pP" else 0)
        value = 60.0 * hour + int(match["minute"] or 0)
        yield *match.span(), Quantity(value, "time of day", value)


def _dotted(text: str) -> Iterator[tuple[int, int, Quantity]]:
    """Versions and addresses: equal only where each part is, so that each is a dimension of its own."""
    for match in _DOTTED.finditer(text):
        parts = [part.lstrip("0") or "0" for part in match[1].split(".")]
        value = float(".".join(parts[:2]))
        yield *match.span(), Quantity(value, f"dotted {'.'.join(parts)}", value)


def _digits(text: str, language: str) -> Iterator[tuple[int, int, Quantity]]:
    comma = language in _COMMA_LANGUAGES
    for match in _NUMBER["comma" if comma else "point"].finditer(text):
        value = _value(match["digits"], comma)
        if match["sign"]:
            value = -value
        tail = (match["tail"] or "").strip()
        if tail in ("k", "K"):
            yield *match.span(), _plain(1000 * value)
        elif tail.casefold() in ("million", "millions", "billion", "thousand", "hundred", "millionen", "milliarden"):
            scale = {"h": 100, "t": 1000, "b": 1e9}.get(tail[0].casefold(), 1e9 if "rd" in tail else 1e6)
            yield *match.span(), _plain(value * scale)
        else:
            degrees = re.match(r"\s?degrees\s+(celsius|fahrenheit)", text[match.end("digits") :], re.I)
            quantity = _with_unit(value, match["money"] or (degrees[1] if degrees else tail))
            # What follows may be a number in words, but where it is a unit it is none.
            yield match.start(), match.end() if quantity.dimension else match.end("digits"), quantity


def _value(digits: str, comma: bool) -> float:
    """The value of digits with separators, where `comma` is the decimal one or not."""
    digits = re.sub(r"[ \u00a0\u202f'’_]", "", digits)
    if not comma:
        digits = digits.replace(",", "")
    elif re.fullmatch(r"\d{1,3}(?:\.\d{3})+(?:,\d+)?", digits):
        digits = digits.replace(".", "")
    digits = digits.replace(",", ".")
    return int(digits) if len(digits) <= LONGEST and digits.isdecimal() else float(digits)


def _words(text: str, language: str) -> Iterator[tuple[int, Quantity]]:
    """Numbers in words: those that stand together are one number."""
    small, scales = number_words(language)
    total, current, light, begun = 0, 0, True, -1
    pending = ""
    for match in _WORDS.finditer(text):
        word = match[0].casefold()
        parts = [word] if word in small or word in scales else word.split("-")
        if all(part in small or part in scales for part in parts):
            for part in parts:
                light = light and part in LIGHT
                if part in small:
                    if current and not (current % 100 in range(20, 100, 10) and small[part] < 10) and current % 100:
                        yield begun, replace(_plain(total + current), light=light)
                        total, current, begun, light = 0, 0, -1, part in LIGHT
                    current += small[part]
                elif scales[part] == 100:
                    current = max(current, 1) * 100
                else:
                    total, current = total + max(current, 1) * scales[part], 0
                begun = match.start() if begun < 0 else begun
            continue
        if word in ("and", "y", "e", "et", "und") and begun >= 0 and (total or current >= 100) and not pending:
            pending = word
            continue
        if begun >= 0:
            quantity = _with_unit(total + current, word)
            yield begun, replace(quantity, light=light)
            total, current, light, begun = 0, 0, True, -1
        pending = ""
        if language == "en" and word in ORDINALS:
            yield match.start(), _plain(ORDINALS[word])
    if begun >= 0:
        yield begun, replace(_plain(total + current), light=light)


def _chinese(text: str) -> Iterator[tuple[int, Quantity]]:
    for match in _CHINESE.finditer(text):
        total, section, digit = 0, 0, 0
        for character in match[0]:
            if character in _CHINESE_DIGITS:
                digit = 10 * digit + _CHINESE_DIGITS[character]
            elif (scale := _CHINESE_SCALES[character]) < 10_000:
                section, digit = section + max(digit, 1) * scale, 0
            else:
                total, section, digit = total + max(section + digit, 1) * scale, 0, 0
        value = total + section + digit
        unit = re.match(
            r"\s*(公里|千米|米|公斤|千克|升|小时|分钟|分|秒|天|美元|欧元|円|時間|ユーロ)", text[match.end() :]
        )
        quantity = _with_unit(value, unit[1] if unit else "")
        yield match.start(), replace(quantity, light=value <= 1)
