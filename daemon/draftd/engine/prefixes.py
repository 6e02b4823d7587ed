"""The engine thread's work with prefixes on disk: it reads those that prompts begin with, writes those of ended texts,
and computes pinned ones.

It works in pieces between steps. Other threads read and write the files (cache/prefix_disk.py), and never see an MLX
array. If the disk has more of a prompt than memory, the sequence begins once that is read, or cannot be read."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from draftd.engine.cache.base import KVSegment
from draftd.engine.cache.pins import LEAST, MOST_PINS, Pin
from draftd.engine.cache.prefill import Prefill
from draftd.engine.cache.prefix_arrays import apart, load_array, store_array, together
from draftd.engine.cache.prefix_disk import PrefixDisk
from draftd.engine.cache.prefix_file import BadFile, PrefixHeader
from draftd.engine.cache.prefix_store import PrefixCache, PrefixStore
from draftd.engine.cache.trie import Tokens, pack_tokens
from draftd.engine.drafters.base import Drafter, Text
from draftd.engine.features import Features
from draftd.engine.inbox import PinPrefix
from draftd.engine.limits import EXACT_SLICE
from draftd.engine.model_keys import ModelKey, ModelKeys
from draftd.engine.sequence import DecodeSequence
from draftd.errors import DraftdError, EngineFailure, NoRoom, NotNow, QueueFull, in_one_line
from draftd.models.folder import ModelFiles

_log = logging.getLogger(__name__)

TARGET = "target"
_WORTH = 64  # tokens: fewer are computed faster than read, and get no file
_READ_SECONDS = 5.0  # the longest that a sequence waits for the disk
_PIECE = 8 << 20  # bytes copied between two steps
_POLL_SECONDS = 0.005  # while nothing runs
_START_SECONDS = 2.0  # at most at the start, before requests are taken
_CLOSE_SECONDS = 2.0
_MOST_SAVES = 64  # texts that wait to be written; the oldest is dropped
_EVERY = 8  # steps of running sequences between two pieces that are not urgent

Waits = Future[Any] | None
Work = Generator[Waits, None, Any]  # yields what it waits for; None between two pieces of work


class KeptTexts(NamedTuple):
    """A model whose texts are kept. `fed` maps token ids to those that the model is fed: a draft model's are clipped to
    its vocabulary. `files`: the files that the model was read from. `head`: the drafter, if it is fed hidden states of
    the target, which come first in a list of models."""

    name: str
    texts: Prefill
    fed: Callable[[list[int]], list[int]]
    files: ModelFiles | None
    head: Drafter | None = None


@dataclass(slots=True, eq=False)
class _Task:
    work: Work
    done: Future[Any] = field(default_factory=Future)
    waits: Waits = None
    until: float = float("inf")


class PrefixJobs:
    """Engine thread only."""

    def __init__(
        self,
        disk: PrefixDisk | None,
        cache: PrefixCache,
        models: Callable[[], list[KeptTexts]],
        chunk: int,
        keys: ModelKeys,
    ) -> None:
        """`disk`: None keeps nothing there. `models` returns those in memory now, the target first."""
        self._disk, self._cache, self._models, self._chunk, self._keys = disk, cache, models, chunk, keys
        self._reads: deque[_Task] = deque()
        self._others: deque[_Task] = deque()
        self._saves: deque[tuple[str, Tokens[int]]] = deque()
        self._numbers = itertools.count(1)
        self._turn = 0
        self.model = ""  # the digest of the target's files; empty until it is known. Any thread reads it
        self._closed = disk is None
        if disk is not None and disk.limit:
            cache.listener = self._queue_save

    @property
    def busy(self) -> bool:
        return bool(self._reads or self._others or self._saves)

    def start(self) -> None:
        """Scans the disk, and reads or computes the pins of this model. Blocks for up to two seconds; what is left is
        done between steps."""
        if self._disk is None:
            return
        until, scanned = time.monotonic() + _START_SECONDS, self._disk.start()
        wait([scanned], _START_SECONDS)
        if self._disk.usage.disk_files or self._disk.usage.pins or self._disk.limit:
            self._others.append(_Task(self._restore_pins(scanned)))
            while self._others and time.monotonic() < until:
                self.step(running=0)

    def begin(self, sequence: DecodeSequence) -> None:
        """Queues a read if the disk has more of a new sequence's prompt than memory; the sequence waits for it."""
        if self._closed or not sequence.shares or sequence.wants_prompt:
            return
        tokens = sequence.tokens[:-1]
        if any(self._gain(model, tokens) >= _WORTH for model in self._models()):
            sequence.reads_prefix = True
            self._reads.append(_Task(self._read(sequence, tokens), until=time.monotonic() + _READ_SECONDS))

    def pin(self, command: PinPrefix) -> None:
        if len(self._others) > MOST_PINS:
            command.done.set_exception(QueueFull(f"{MOST_PINS} pins wait to be computed", retry_after=1.0))
            return
        work = self._make_pin(command.name, command.tokens, None)
        self._others.append(_Task(work, command.done))

    def step(self, running: int) -> bool:
        """Does one piece. Returns False if all work waits for the disk or a better time. If nothing runs, it may wait a
        moment for the disk."""
        urgent = bool(self._reads)
        if not urgent and not self._others and self._saves:
            name, tokens = self._saves.popleft()
            self._others.append(_Task(self._save(name, tokens)))
        tasks = self._reads if urgent else self._others
        if not tasks:
            return False
        self._turn += 1
        if running and not urgent and self._turn % _EVERY:
            return False
        task = tasks[0]
        if task.waits is not None and not task.waits.done():
            if time.monotonic() < task.until:
                if not running:
                    wait([task.waits], _POLL_SECONDS)
                return False
            _log.warning("the disk did not deliver a prefix within %g s; it is computed", _READ_SECONDS)
            task.work.close()
            tasks.popleft()
            return False
        try:
            task.waits = next(task.work)
        except StopIteration as end:
            tasks.popleft()
            task.done.set_result(end.value)
        except Exception as error:
            tasks.popleft()
            failure = error if isinstance(error, DraftdError) else EngineFailure(in_one_line(error))
            if not isinstance(error, NoRoom):  # that is logged already, or raised to the caller
                _log.warning("a prefix could not be read or kept: %s", failure.message, exc_info=failure is not error)
            failure.__traceback__ = failure.__cause__ = failure.__context__ = None  # its frames refer to arrays
            task.done.set_exception(failure)
        return True

    def restore(self) -> None:
        """Queues the pins again, after the weights were loaded again and memory lost all prefixes."""
        if self._disk is not None and self._disk.usage.pins:
            self._others.append(_Task(self._restore_pins(None)))

    def close(self, error: Exception) -> None:
        """Takes no more work, and ends all that is under way. May be called again."""
        self._closed = True
        self.end(error)

    def end(self, error: Exception) -> None:
        """Ends all work. Sequences that wait for a file are prefilled without it."""
        self._saves.clear()
        for tasks in (self._reads, self._others):
            while tasks:
                task = tasks.popleft()
                task.work.close()
                task.done.set_exception(error)

    def shut(self) -> None:
        """Closes the disk, after `close`; no incomplete file is left there."""
        if self._disk is not None:
            self._disk.close(_CLOSE_SECONDS)

    # reading

    def _gain(self, model: KeptTexts, tokens: Sequence[int]) -> int:
        """Returns how many more tokens of a text the disk has than memory."""
        key = self._keys.now(model.files)
        if key is None or self._disk is None or not model.texts.store.open:
            return 0
        have = model.texts.store.known_length(tokens)
        parts = self._disk.parts(key.key, tokens, have, segments=model.texts.running.segmented)
        return parts[-1].length - have if parts else 0

    def _read(self, sequence: DecodeSequence, tokens: Sequence[int]) -> Work:
        try:
            for model in self._models():
                if not sequence.ended:
                    yield from self._fetch(model, tokens)
        finally:
            sequence.reads_prefix = False

    def _fetch(self, model: KeptTexts, tokens: Sequence[int]) -> Work:
        """Loads the disk's pieces of a text into memory."""
        key, disk, store, caches = self._keys.now(model.files), self._disk, model.texts.store, model.texts.running
        if key is None or disk is None or not store.open:
            return
        for file, length in disk.parts(key.key, tokens, store.known_length(tokens), segments=caches.segmented):
            header, reading = file.header, disk.read(file)
            yield reading
            try:
                stored_arrays = reading.result()
            except (BadFile, OSError):  # logged already
                return
            arrays, copied_bytes = [], 0
            for array in stored_arrays:
                arrays.append(load_array(array))
                copied_bytes += array.data.nbytes
                if copied_bytes >= _PIECE:
                    copied_bytes = 0
                    yield None
            value = together(header.form, arrays, len(header.tokens) - header.start, caches)
            text = header.tokens
            if isinstance(value, KVSegment) and length < len(text):
                value, text = value.copy(0, length - header.start), text[:length]
            if self._is_stale(model):
                return
            store.put(text, value)
            yield None

    # writing

    def _queue_save(self, store: PrefixStore, tokens: Sequence[int], length: int) -> None:
        """Queues a text that a store has kept, to be written."""
        model = next((one for one in self._models() if one.texts.store is store), None)
        if model is None or self._closed or length < _WORTH:
            return
        text = pack_tokens(tokens[:length])
        if model.texts.running.segmented:  # a longer text contains those that it begins with
            waiting = [one for one in self._saves if one[0] != model.name or one[1] != text[: len(one[1])]]
            self._saves = deque(waiting)
        self._saves.append((model.name, text))
        while len(self._saves) > _MOST_SAVES:
            self._saves.popleft()

    def _save(self, name: str, tokens: Sequence[int]) -> Work:
        model = next((one for one in self._models() if one.name == name), None)
        if model is not None:
            yield from self._write(model, tokens, None)

    def _write(self, model: KeptTexts, tokens: Sequence[int], pin: Sequence[str] | None) -> Work:
        """Writes the part of a text that memory has and the disk lacks. Returns the file's name; None if nothing can or
        need be written. `pin`: None, or the files that a pin has so far; a pin's text is written whole, so that the pin
        needs no other file."""
        key, disk, segments = (yield from self._key(model)), self._disk, model.texts.running.segmented
        if key is None or disk is None or self._is_stale(model):
            return None
        start = 0
        if pin is None and (parts := disk.parts(key.key, tokens, 0, segments=segments)):
            start = parts[-1].length
        segments_found = model.texts.store.find(tokens, len(tokens))
        length = sum(segment.length for segment in segments_found)
        if pin is not None and length < len(tokens):
            bound = self._cache.bound
            raise NoRoom(f"{len(tokens)} tokens do not fit into the {bound} bytes that prefixes may use now")
        if pin is None and length - start < _WORTH:
            return None
        start = start if segments else 0
        least = 0 if isinstance(segments_found[0], KVSegment) else segments_found[0].least
        taken = apart(segments_found, start)
        if taken is None:
            return None
        header = PrefixHeader(key.key, pack_tokens(tokens[:length]), start, least, taken.form)
        name = disk.name_of(key.key, header.tokens, start)
        if disk.has(name):
            return name
        begun = disk.begin(header, taken.nbytes, pin)
        try:
            writer = yield from _await_future(begun)
            for array in taken.arrays:
                yield from _await_future(disk.put(writer, store_array(array)))
            return (yield from _await_future(disk.finish(writer)))
        except BaseException:
            disk.abort(begun)
            raise

    # pins

    def _make_pin(self, name: str, tokens: Sequence[int], before: Pin | None) -> Work:
        """Puts a prefix into memory and on disk under its name; returns the pin. `before`: the earlier pin. An exact
        model keeps only whole slices."""
        pinned, tokens = tuple(tokens), tokens[: self._models()[0].texts.usable(len(tokens))]
        if len(tokens) < LEAST:
            raise NotNow(f"engine.exact keeps prefixes in multiples of {EXACT_SLICE} tokens; this one has fewer")
        disk, files, model_key = self._disk, list[str](), ""
        assert disk is not None
        try:
            for model in self._models():
                key = yield from self._key(model)
                if key is None and model.name == TARGET:
                    raise NotNow(
                        "no prefix of this model is kept on disk: its files have changed since they were loaded"
                    )
                if key is None:
                    continue
                self.model = model_key = model_key or key.model
                yield from self._fetch(model, tokens)
                yield from self._compute(model, tokens)
                file = yield from self._write(model, tokens, files)
                if file is not None:
                    files.append(file)
                elif model.name == TARGET:
                    raise NotNow("caches of this model cannot be kept on disk")
            if before is not None and before.files == tuple(files):
                return before
            more = {} if before is None else {"created": before.created}
            pin = Pin(name, model_key, pinned, tuple(files), **more)
            yield from _await_future(disk.pin(pin))
            return pin
        finally:
            disk.settle(files)

    def _compute(self, model: KeptTexts, tokens: Sequence[int]) -> Work:
        """Computes a text's keys and values into memory, as a request that begins so would."""
        if model.texts.store.known_length(tokens) == len(tokens):
            return
        if (head := model.head) is None:
            yield from self._take_in(model, tokens)
            return
        # The last token's pair is never read: each text that goes on from here has its own.
        text = Text([*tokens, tokens[0]], shares=True)
        head.begin(text, 0)
        try:
            yield from self._take_in(self._models()[0], tokens, partial(head.feed, text))
            text.ended = True
        finally:
            head.leave(text)

    def _take_in(self, model: KeptTexts, tokens: Sequence[int], feed: Callable[[Features], None] | None = None) -> Work:
        """Computes a text, a chunk at a time. `feed` takes all of its hidden states."""
        texts, key = model.texts, -next(self._numbers)
        texts.open(key, len(tokens), tokens, computed=feed is not None)
        try:
            while (length := texts.length(key)) < len(tokens):
                texts.take_in(key, model.fed(list(tokens[length : length + self._chunk])))
                states = texts.take_states(key)
                texts.settle(key, *([] if states is None else [states]))
                if feed is not None and states is not None:
                    feed(Features(length, states.shape[1], states))
                texts.keep_piece(key, tokens)
                yield None
                if self._is_stale(model):
                    raise EngineFailure("a decode step failed while the prefix was computed: pin it again")
            texts.keep(key, tokens)
        finally:
            texts.drop(key)

    def _restore_pins(self, scanned: Waits) -> Work:
        """Reads this model's pins while memory has room, and computes those that the disk lacks."""
        yield scanned
        assert self._disk is not None
        target, *others = self._models()
        key = yield from self._key(target)
        for model in others:
            yield from self._key(model)
        self.model = "" if key is None else key.model
        for pin in self._disk.pins.oldest_first:
            if key is None or pin.model != key.model:
                continue
            there = all(map(self._disk.has, pin.files)) and self._gain(target, pin.tokens)
            if there and self._cache.bytes + self._disk.bytes_of(pin.files) > self._cache.bound:
                continue  # a request that begins so reads it
            if not there:
                why = "the disk has no copy for this model in this format"
                _log.info("the pinned prefix %s is computed again: %s", pin.name, why)
            try:
                yield from self._make_pin(pin.name, pin.tokens, pin)
            except DraftdError as error:
                _log.warning("the pinned prefix %s could not be restored: %s", pin.name, error.message)

    # models

    def _is_stale(self, model: KeptTexts) -> bool:
        """Returns whether the model's store was replaced meanwhile: nothing would read what is put there."""
        return all(one.texts.store is not model.texts.store for one in self._models())

    def _key(self, model: KeptTexts) -> Generator[Waits, None, ModelKey | None]:
        key: ModelKey | None = yield from _await_future(self._keys.of(model.files))
        return key


def _await_future(future: Future[Any]) -> Generator[Waits, None, Any]:
    while not future.done():
        yield future
    return future.result()
