"""Measures a model's exactness, and makes a model exact."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

from draftd.engine.cache.alone_mode import AloneMode, forget_alone, mode_of, prepare_alone
from draftd.engine.cache.layouts import attention_is_apart
from draftd.engine.cache.model_layers import wanted_positions
from draftd.engine.exactness.forwards import ForwardComparison, LogitDifferences
from draftd.engine.exactness.operations import Operations, StepSizes
from draftd.exactness import Exactness, OperationExactness, OperationKind

# Tokens of the prompts that an exact model is tried with. Attention over padding adds in another order only if there is
# much of it.
_TRIAL_LENGTHS = (9, 14, 23, 5, 330)

_log = logging.getLogger(__name__)

Progress = Callable[[str], None]


class ExactLayers:
    """The layers that make a model exact on this machine. The same model, loaded again, need not be measured again."""

    def __init__(self, operations: Operations, by_token: bool) -> None:
        self._layers = [(layer.call.path, layer) for layer in operations.layers]
        self.by_token = by_token
        self.operations = MeasuredOperations(operations.differing, operations.total)

    def install(self, model: Any) -> None:
        """Makes the model compute each token alone within `tokens_alone`."""
        mode = prepare_alone(model)
        mode.by_token, mode.exact = self.by_token, True
        if not self.by_token:
            modules = dict(model.named_modules())
            for path, layer in self._layers:
                layer.split(modules[path], mode)


def make_exact(model: Any, vocabulary: int, sizes: StepSizes, slice_width: int, progress: Progress) -> ExactLayers:
    """Measures which of the model's layers differ, and makes it exact. If whole forwards still differ, or attention
    cannot be called for single tokens, each token gets a forward of its own."""
    operations = Operations(model, vocabulary, sizes)
    mode, reported, kinds = prepare_alone(model), -1, _kinds(model)
    by_token = not attention_is_apart(model)
    try:
        for _ in _split(operations, model, mode):
            if operations.done != reported:
                progress(f"measuring what depends on a step's size: {operations.progress}")
                reported = operations.done
        progress("measuring whole forwards")
        by_token = by_token or _differs(model, vocabulary, sizes, slice_width)
    except Exception as error:  # some architectures cannot be called so
        _log.debug("its layers cannot compute tokens alone", exc_info=error)
        by_token = True
    exact = ExactLayers(operations, by_token)
    if by_token:
        _give_back(kinds)
    mode.by_token, mode.exact = by_token, True
    for layer in operations.layers:
        layer.forget()
    return exact


def _differs(model: Any, vocabulary: int, sizes: StepSizes, slice_width: int) -> bool:
    """Returns whether any forward in the model's mode gives other bits than one token alone."""
    prompts = [[(13 * at + 5 * n) % vocabulary for at in range(n)] for n in _TRIAL_LENGTHS]
    comparison, differences = ForwardComparison(model, prompts, sizes, slice_width), LogitDifferences()
    try:
        for _ in itertools.chain(
            comparison.prepare(in_mode=True), comparison.compare(differences, in_mode=True, slices=False)
        ):
            pass
    finally:
        comparison.close()
    return differences.operation("", OperationKind.FORWARD).differs


def _split(operations: Operations, model: Any, mode: AloneMode) -> Generator[None, None, None]:
    """Measures layers, and makes those that differ compute tokens alone."""
    yield from operations.measure()
    for layer in operations.layers:
        layer.split(layer.call.module, mode)
    before = len(operations.layers)
    yield from operations.measure_composites()
    for layer in operations.layers[before:]:
        layer.split(layer.call.module, mode)


def measure(
    model: Any,
    vocabulary: int,
    prompts: Sequence[Sequence[int]],
    sizes: StepSizes,
    slice_width: int,
    *,
    exact: ExactLayers | None = None,
) -> Generator[str, None, Exactness]:
    """Measures a model's layers and whole forwards; yields after each piece how far it is. `prompts`: tokens of texts
    that the model goes on with. `exact`: what made the model exact; its whole forwards are then measured as it
    decodes."""
    began = time.perf_counter()
    forwards = ForwardComparison(model, prompts, sizes, slice_width)
    differences, attention = LogitDifferences(), LogitDifferences()
    in_mode, by_token = exact is not None, exact is not None and exact.by_token
    try:
        with contextlib.nullcontext() if exact is not None else _as_it_was(model):
            operations = yield from _operations(model, vocabulary, sizes) if exact is None else _known_operations(exact)
            yield from _name_pieces(forwards.prepare(in_mode=in_mode), "texts", forwards.prepare_pieces)
            if not by_token:
                pieces = forwards.compare(attention, in_mode=True, attention=False, slices=not in_mode)
                yield from _name_pieces(pieces, "attention", forwards.compare_pieces)
            pieces = forwards.compare(differences, in_mode=in_mode, slices=not in_mode)
            yield from _name_pieces(pieces, "whole forwards", forwards.compare_pieces)
    finally:
        forwards.close()
    differing = list(operations.differing)
    if (attending := attention.operation("attention", OperationKind.ATTENTION)).differs:
        differing.append(attending)
    return Exactness(
        exact=in_mode,
        by_token=by_token,
        forward=differences.operation("whole forward", OperationKind.FORWARD),
        operations=tuple(differing),
        measured=operations.measured + 1,
        flips=forwards.flips(differences),
        positions=forwards.positions,
        seconds=time.perf_counter() - began,
    )


class MeasuredOperations(NamedTuple):
    """The operations that differ, and how many kinds were `measured`."""

    differing: Sequence[OperationExactness]
    measured: int


def _operations(model: Any, vocabulary: int, sizes: StepSizes) -> Generator[str, None, MeasuredOperations]:
    operations = Operations(model, vocabulary, sizes)
    for _ in _split(operations, model, prepare_alone(model)):
        yield f"operations: {operations.progress}"
    return MeasuredOperations(operations.differing, operations.total)


def _known_operations(exact: ExactLayers) -> Generator[str, None, MeasuredOperations]:
    yield "operations"
    return exact.operations


def _name_pieces(pieces: Iterator[None], name: str, total: int) -> Generator[str, None, None]:
    for done, _ in enumerate(pieces, 1):
        yield f"{name}: {done} of {total}"


@contextlib.contextmanager
def _as_it_was(model: Any) -> Iterator[None]:
    """Gives the model's layers back their classes, and the model its mode."""
    wanted_positions(model)  # which changes the last layer for good
    mode, kinds = mode_of(model), _kinds(model)
    try:
        yield
    finally:
        _give_back(kinds)
        if mode is None:
            forget_alone(model)


def _kinds(model: Any) -> list[tuple[Any, type]]:
    return [(module, type(module)) for module in model.modules()]


def _give_back(kinds: list[tuple[Any, type]]) -> None:
    for module, kind in kinds:
        module.__class__ = kind
