"""Prompts to token ids, tokens to text: characters and stop strings split over tokens, nothing shown too early."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from draftd.core import DecodeMode, DecodePlan, DepthMode, FallbackLevel, FinishReason, TokenLogprobs
from draftd.errors import InvalidRequest
from draftd.model_info import ModelInfo
from draftd.outcome import Emission, Outcome, RequestStats
from draftd.service.answer import AnswerStream, stop_matcher
from draftd.service.chat_template import ChatRenderer
from draftd.service.messages import Chat, Message
from draftd.service.request import Prompt, RawText, ServedModel, TokenIds
from draftd.service.text import StopConditions, StopScanner, TextForm, text_of_prompt, tokenise
from tests.scripted import ByteTokenizer

SMALL = st.text(alphabet="ab\n", max_size=40)  # a small alphabet: overlaps and false starts are the rule
ENDED = Outcome(FinishReason.STOP, RequestStats(1, 0.0))
PLAN = DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, FallbackLevel.FULL, "on", "test")
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), min_size=1, max_size=4)


class PlainText:
    """An answer stream that is plain text only."""

    def __init__(
        self, tokenizer: ByteTokenizer, ends: StopConditions = StopConditions(), form: TextForm = TextForm()
    ) -> None:
        self._answer = AnswerStream(tokenizer, ends, None, form=form)

    @property
    def stop(self) -> str:
        return self._answer.finished_event(ENDED, PLAN).stop

    def add(self, tokens: Sequence[int], offsets: list[int] | None = None) -> list[str]:
        if not tokens:
            return []
        logprobs = () if offsets is None else (TokenLogprobs(0.0),) * len(tokens)
        chunk = self._answer.add(Emission(tuple(tokens), (False,) * len(tokens), logprobs))
        if offsets is not None:
            offsets += chunk.offsets
        return list(chunk.pieces)

    def finish(self) -> str:
        rest = self._answer.finish(ENDED)
        return "" if rest is None else rest.text


def first_stop(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """Returns by brute force the text before the first completed stop string, and that string."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, ""


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    bounds = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


@given(SMALL, STOPS, st.lists(st.integers(0, 40), max_size=8))
def test_text_ends_before_the_first_stop_string_at_any_chunk_boundaries(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    scanner = StopScanner(stops)
    shown = "".join(scanner.feed(piece) for piece in pieces(text, cuts)) + scanner.finish()
    assert (shown, scanner.matched) == first_stop(text, stops)


@given(SMALL, STOPS)
def test_stop_scanner_holds_back_only_a_possible_stop_string_prefix(text: str, stops: list[str]) -> None:
    scanner = StopScanner(stops)
    shown = ""
    for i, character in enumerate(text, 1):
        shown += scanner.feed(character)
        if scanner.matched:
            break
        held = text[len(shown) : i]
        assert not held or any(stop.startswith(held) for stop in stops)


@given(st.text(max_size=60), st.lists(st.text(min_size=1, max_size=3), max_size=3))
def test_detokenized_bytes_give_the_text_up_to_its_first_stop_string(text: str, stops: list[str]) -> None:
    tokenizer = ByteTokenizer(257)
    stream = PlainText(tokenizer, StopConditions(stops))
    parts = stream.add(tokenizer.encode(text))
    assert len(parts) == len(tokenizer.encode(text))
    assert "".join(parts) + stream.finish() == first_stop(text, stops)[0]


@given(SMALL, STOPS, st.integers(1, 6))
def test_engine_stop_matcher_and_text_stream_stop_at_the_same_token(text: str, stops: list[str], width: int) -> None:
    tokenizer = ByteTokenizer(257)
    tokens = tokenizer.encode(text)
    matcher, stream = stop_matcher(tokenizer, StopConditions(stops), None), PlainText(tokenizer, StopConditions(stops))
    shown, emitted = "", 0
    for start in range(0, len(tokens), width):
        step = tokens[start : start + width]
        kept = matcher.feed(step)
        step = step if kept is None else step[:kept]
        emitted += len(step)
        shown += "".join(stream.add(step))
        if kept is not None:
            break
    shown += stream.finish()
    before, stop = first_stop(text, stops)
    assert (shown, stream.stop) == (before, stop)
    assert emitted == (len(before) + len(stop) if stop else len(text))


def test_multi_byte_character_appears_with_its_last_token() -> None:
    tokenizer = ByteTokenizer(257)
    stream = PlainText(tokenizer)
    assert stream.add("🦙".encode()) == ["", "", "", "🦙"]


@given(
    st.text(max_size=30), st.lists(st.text(min_size=1, max_size=2), max_size=2), st.integers(1, 7), st.integers(0, 9)
)
def test_token_offset_is_the_index_of_the_character_the_token_belongs_to(
    text: str, stops: list[str], width: int, before: int
) -> None:
    tokenizer, found = ByteTokenizer(257), list[int]()
    stream = PlainText(tokenizer, StopConditions(stops), TextForm(before=before))
    tokens = tokenizer.encode(text)
    for start in range(0, len(tokens), width):
        stream.add(tokens[start : start + width], found)
    assert found == [before + i for i, character in enumerate(text) for _ in character.encode()]


@given(st.binary(max_size=30))
@example(b"\xed\xa0\x00")  # half a surrogate pair, which Python's decoder holds until its third byte
def test_token_offsets_count_the_replacements_of_invalid_utf8(data: bytes) -> None:
    stream, offsets = PlainText(ByteTokenizer(257)), list[int]()
    text = "".join(stream.add(data, offsets)) + stream.finish()
    assert text == data.decode(errors="replace")
    for byte, offset in zip(data, offsets, strict=True):
        assert text[offset] == (chr(byte) if byte < 128 else text[offset])
        assert byte < 128 or ord(text[offset]) >= 128


class Marked(ByteTokenizer):
    """A tokenizer whose first tokens are special."""

    def __init__(self) -> None:
        super().__init__(257)
        self.special_tokens = {0: "<|a|>", 1: "<|b|>"}

    def token_bytes(self, token: int) -> bytes:
        return self.special_tokens[token].encode() if token in self.special_tokens else super().token_bytes(token)


def test_special_tokens_have_no_text_unless_requested() -> None:
    tokens, offsets = [104, 0, 105, 1, 33], list[int]()
    stream = PlainText(Marked())
    assert stream.add(tokens, offsets) == ["h", "", "i", "", "!"]
    assert offsets == [0, 1, 1, 2, 2]
    assert PlainText(Marked(), form=TextForm(special=True)).add(tokens) == ["h", "<|a|>", "i", "<|b|>", "!"]
    included = PlainText(Marked(), StopConditions((), (1,), include=True))
    assert included.add(tokens) == ["h", "", "i", "<|b|>", "!"]


def test_character_split_by_a_special_token_is_decoded() -> None:
    first, second = "é".encode()
    stream = PlainText(Marked())
    assert stream.add([first, 0, second]) == ["", "", "é"]


@pytest.mark.parametrize("stop", ["<|b|>", "i<|b|>!"])
def test_stop_string_matches_special_tokens(stop: str) -> None:
    tokens = [104, 0, 105, 1, 33, 104]
    stream, matcher = PlainText(Marked(), StopConditions([stop])), stop_matcher(Marked(), StopConditions([stop]), None)
    assert "".join(stream.add(tokens)) + stream.finish() == "hi!"[: 2 if stop == "<|b|>" else 1]
    assert stream.stop == stop
    assert matcher.feed(tokens) == (4 if stop == "<|b|>" else 5)


def test_unfinished_character_at_the_end_becomes_the_replacement_character() -> None:
    stream = PlainText(ByteTokenizer(257))
    assert stream.add("é".encode()[:1]) == [""]
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_end_of_text_token_adds_no_text() -> None:
    stream = PlainText(ByteTokenizer(257))
    assert stream.add([104, 105, 256]) == ["h", "i", ""]


@pytest.mark.parametrize("width", [1, 2, 3, 7])
def test_stop_string_split_over_tokens_is_never_partly_shown(width: int) -> None:
    tokenizer = ByteTokenizer(257)
    tokens = tokenizer.encode("one\nUser: two")
    stream = PlainText(tokenizer, StopConditions(["\nUser:"]))
    shown = ""
    for start in range(0, len(tokens), width):
        shown += "".join(stream.add(tokens[start : start + width]))
        assert not shown.endswith("\n")
    assert (shown, stream.stop) == ("one", "\nUser:")


def test_incomplete_stop_string_is_shown_when_the_text_ends() -> None:
    stream = PlainText(ByteTokenizer(257), StopConditions(["<end>"]))
    assert "".join(stream.add(b"text <en")) == "text "
    assert stream.finish() == "<en"


def test_stop_matcher_counts_the_token_that_completes_the_stop_string() -> None:
    matcher = stop_matcher(ByteTokenizer(257), StopConditions(["cd"]), None)
    assert matcher.feed(b"ab") is None
    assert matcher.feed(b"cdef") == 2


def test_stop_string_found_after_the_last_token_cuts_text_but_no_token() -> None:
    tokenizer, stops, tokens = ByteTokenizer(257), ["\ufffd"], b"ab" + "é".encode()[:1]
    assert stop_matcher(tokenizer, StopConditions(stops), None).feed(tokens) is None
    stream = PlainText(tokenizer, StopConditions(stops))
    assert "".join(stream.add(tokens)) == "ab"
    assert (stream.finish(), stream.stop) == ("", "\ufffd")


MODEL = ServedModel(ModelInfo("m", None, 10_000, 257, (), 0, 0, "cpu"), 1, 4, DepthMode.FIXED, chat_template=True)


class Noting(ByteTokenizer):
    """A tokenizer that notes what it encodes, and whether on the event loop's thread; it waits for `gate` first."""

    def __init__(self) -> None:
        super().__init__(257)
        self.encoded: list[tuple[int, bool]] = []
        self.gate = threading.Event()
        self.gate.set()
        self._loops = threading.get_ident()

    def encode(self, text: str) -> list[int]:
        assert self.gate.wait(10)
        self.encoded.append((len(text), threading.get_ident() == self._loops))
        return super().encode(text)


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


async def test_each_kind_of_prompt_becomes_token_ids(executor: Executor) -> None:
    tokenizer = ByteTokenizer(257)
    assert await tokenise(RawText("hi"), tokenizer, MODEL, executor, ChatRenderer(), "") == (104, 105)
    assert await tokenise(TokenIds((1, 2)), tokenizer, MODEL, executor, ChatRenderer(), "") == (1, 2)
    rendered = tuple(tokenizer.encode("<user>hi\n<assistant>"))
    assert await tokenise(Chat((Message("user", "hi"),)), tokenizer, MODEL, executor, ChatRenderer(), "") == rendered


async def test_prompt_with_a_token_outside_the_vocabulary_is_refused(executor: Executor) -> None:
    few = replace(MODEL, info=replace(MODEL.info, vocab_size=127))
    for prompt, field in ((RawText("hé"), "prompt"), (Chat((Message("user", "\x7f"),)), "chat")):
        with pytest.raises(
            InvalidRequest,
            match=rf"^{field}: got .*text without the token \d+: the model has embeddings only for ids below 127",
        ):
            await tokenise(prompt, ByteTokenizer(257), few, executor, ChatRenderer(), "")


async def test_long_prompt_is_tokenised_without_blocking_the_event_loop(executor: Executor) -> None:
    tokenizer = Noting()
    tokenizer.gate.clear()
    task = asyncio.create_task(tokenise(RawText("x" * 9000), tokenizer, MODEL, executor, ChatRenderer(), ""))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    tokenizer.gate.set()
    assert len(await task) == 9000
    assert tokenizer.encoded == [(9000, False)]


@pytest.mark.parametrize("prompt", [RawText("x" * 1_000_000), Chat((Message("user", "x" * 1_000_000),))])
async def test_far_too_long_prompt_is_refused_after_tokenising_only_its_start(
    prompt: Prompt, executor: Executor
) -> None:
    tokenizer = Noting()
    with pytest.raises(InvalidRequest, match="1000000 characters"):
        await tokenise(prompt, tokenizer, MODEL, executor, ChatRenderer(), "")
    assert tokenizer.encoded == [(160_000, False)]


async def test_prompt_without_tokens_is_refused(executor: Executor) -> None:
    with pytest.raises(InvalidRequest, match="0 tokens"):
        await tokenise(RawText(""), ByteTokenizer(257), MODEL, executor, ChatRenderer(), "")


def test_echoed_prompt_tokens_have_offsets_in_its_text() -> None:
    """Special tokens are text only where they were written; of ids alone they are."""
    tokenizer = ByteTokenizer(256)
    tokenizer.special_tokens = {1: "\x01", 2: "\x02"}
    written = "é\x02b"
    ids = [1, *written.encode()]
    assert text_of_prompt(tokenizer, ids, written) == (written, [0, 0, 0, 1, 2])
    assert text_of_prompt(tokenizer, ids, None) == ("\x01" + written, [0, 1, 1, 2, 3])
    assert text_of_prompt(tokenizer, b"a\xc3", None) == ("a\ufffd", [0, 1])
    assert text_of_prompt(tokenizer, b" ab", "ab") == ("ab", [0, 1, 2])
