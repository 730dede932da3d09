"""Seams: what is proved of a tokenizer, and that texts joined at a seam are tokenised as the whole."""

from __future__ import annotations

from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st
from tests.toy_tokenizer import CONTROL
from tests.toy_tokenizer import ToyTokenizer

from toki.engine.tokens import Tokens
from toki.seams import Recent
from toki.seams import Seam
from toki.seams import Seen
from toki.seams import Tokenizer
from toki.seams import common_prefix
from toki.seams import continued
from toki.seams import find_seams
from toki.seams import last_seam
from toki.seams import learn
from toki.seams import whole

SOURCES = ["{{ '<|a|>' }}[C] <u> <no> [NO] <b>", "<s>", "<not this> << >> []"]
KNOWN = Tokenizer({text.encode(): token for text, token in CONTROL.items()}, lead=1)
TEXTS = st.lists(st.sampled_from([*CONTROL, *"abz \n<>|[]é🙂", "<u>", "zz", "abc"]), max_size=14).map("".join)


def seen(text: str) -> Seen:
    made = whole(KNOWN, text.encode(), ToyTokenizer()(text, add_special=True))
    assert made is not None
    return made


def test_only_control_tokens_are_learned() -> None:
    """<u> is a special token without parse_special too; <no> and [NO] are ordinary text."""
    assert learn(SOURCES, ToyTokenizer(bos=True)) == KNOWN
    assert learn(SOURCES, ToyTokenizer(bos=False)) == Tokenizer(KNOWN.controls, lead=0)


def test_learning_takes_four_calls() -> None:
    tokenize = ToyTokenizer()
    learn(SOURCES, tokenize)
    assert len(tokenize.calls) == 4


def test_nothing_to_learn() -> None:
    assert learn([], ToyTokenizer()) == Tokenizer({}, lead=1)


def test_a_vocabulary_that_ends_texts_has_no_seams() -> None:
    assert learn(SOURCES, ToyTokenizer(eos=True)) is None


def test_a_server_that_drops_ids_teaches_nothing() -> None:
    tokenize = ToyTokenizer()

    def without_ids(content: object, **flags: bool) -> object:
        ids = tokenize(content, **flags)  # type: ignore[arg-type]
        return ids[ids < 2**31 - 1]

    assert learn(SOURCES, without_ids) == Tokenizer({}, lead=1)  # type: ignore[arg-type]


def test_seams_lie_before_control_tokens() -> None:
    text = "é<|a|>ab<b>"
    assert seen(text).seams == (Seam(2, 7, 2), Seam(9, 12, 4))
    assert [len(text.encode()[: seam.start].decode()) for seam in seen(text).seams] == [1, 8]


def test_a_text_whose_control_tokens_do_not_add_up_has_none() -> None:
    for text in ("a<|a|>b<b>zz", "<b>zz"):
        assert find_seams(KNOWN, text.encode(), ToyTokenizer()(text, add_special=False)) is None
        assert whole(KNOWN, text.encode(), ToyTokenizer()(text, add_special=True)) is None


def test_without_control_tokens_there_are_no_seams() -> None:
    assert find_seams(Tokenizer({}, 0), b"<|a|>", ToyTokenizer()("<|a|>", add_special=False)) == ()


def test_the_last_seam_lies_whole_within_what_is_shared() -> None:
    known = seen("<|a|>ab<b>ab")
    assert last_seam(known, 12) == last_seam(known, 10) == Seam(7, 10, 4 - 1)
    assert last_seam(known, 9) is None  # the start of a text is no gain
    assert last_seam(seen("ab"), 2) is None


def test_a_tail_that_does_not_begin_with_its_control_token_is_refused() -> None:
    known = seen("ab<b>ab")
    seam = known.seams[0]
    for new in ("ab<b>zz", "ab<b>zz<b>"):
        tail = ToyTokenizer()(new[2:], add_special=False)
        assert continued(KNOWN, known, seam, new.encode(), tail) is None
    tail = ToyTokenizer()("x<b>q", add_special=False)  # as if the server put something before it
    assert continued(KNOWN, known, seam, b"ab<b>q", tail) is None


@given(TEXTS, TEXTS, TEXTS)
@example("ab<b>", "c", "zz")
@example("ab [C] ", "<b>", "[C]a")
def test_joined_at_a_seam_is_as_the_whole(head: str, old: str, new: str) -> None:
    before, text = head + old, head + new
    known = whole(KNOWN, before.encode(), ToyTokenizer()(before, add_special=True))
    if known is None:
        return
    shared = common_prefix(before.encode(), text.encode())
    seam = last_seam(known, shared)
    if seam is None:
        return
    tail = ToyTokenizer()(text.encode()[seam.start :].decode(), add_special=False)
    made = continued(KNOWN, known, seam, text.encode(), tail)
    expected = ToyTokenizer()(text, add_special=True)
    if made is not None:
        assert made.tokens == Tokens.of(expected)
        assert made == whole(KNOWN, text.encode(), expected)
    else:
        assert "<b>zz" in text


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_common_prefix(head: bytes, a: bytes, b: bytes) -> None:
    a, b = head + a, head + b
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


@given(st.lists(TEXTS, max_size=12), TEXTS)
def test_recent_finds_the_longest(texts: list[str], text: str) -> None:
    recent = Recent()
    for each in texts:
        recent.put(Seen(each.encode(), Tokens.of([]), ()))
    _, shared = recent.longest(text.encode())
    assert shared == max((common_prefix(each.encode(), text.encode()) for each in texts), default=0)


def plain(text: str) -> Seen:
    return Seen(text.encode(), Tokens.of([1]), ())


def held(recent: Recent, *texts: str) -> list[bool]:
    return [recent.longest(text.encode())[1] == len(text) for text in texts]


def test_recent_forgets_the_oldest() -> None:
    recent = Recent(count=2)
    for text in ("1", "2", "1", "3"):
        recent.put(plain(text))
    assert held(recent, "1", "2", "3") == [True, False, True]


def test_recent_is_bounded_in_bytes() -> None:
    recent = Recent(limit=100)
    recent.put(plain("1" * 60))
    recent.put(plain("2" * 30))
    assert held(recent, "1" * 60, "2" * 30) == [True, True]
    recent.put(plain("3" * 30))
    assert held(recent, "1" * 60, "2" * 30, "3" * 30) == [False, True, True]
    recent.put(plain("4" * 200))
    assert held(recent, "3" * 30, "4" * 200) == [True, False]


def test_a_text_that_was_built_on_leaves_or_moves_up() -> None:
    """One that the new text continues at its last seam is of no more use; one that it left earlier is."""
    recent = Recent(count=2)
    old, side = seen("ab<b>ab<|a|>ab"), seen("[C]")
    recent.put(old)
    recent.put(side)
    recent.put(seen("ab<b>ab<|a|>abc"), used=old)
    assert held(recent, "ab<b>ab<|a|>abc", "[C]") == [True, True]
    recent = Recent(count=2)
    recent.put(old)
    recent.put(side)
    recent.put(seen("ab<b>c"), used=old)
    assert held(recent, "ab<b>c", "ab<b>ab<|a|>ab", "[C]") == [True, True, False]
