"""What both ends keep of a text and of how it may go on."""

from __future__ import annotations

import pytest

from draftd.engine.guess import Guess

TEXT, PENDING = [1, 2, 3], [4, 5, 6]


@pytest.fixture
def guess() -> Guess:
    """Of the text 1 2 3, with 4 5 6 behind it."""
    made = Guess(list(TEXT))
    assert made.propose(3, 3, PENDING) == 0
    return made


@pytest.mark.parametrize(
    ("known", "last", "proposed", "dropped", "pending"),
    [
        pytest.param(6, 6, [7, 8], 0, [4, 5, 6, 7, 8], id="goes on"),
        pytest.param(3, 3, [4, 5, 6], 0, [4, 5, 6], id="comes twice"),
        pytest.param(3, 3, [4, 5], 0, [4, 5, 6], id="says less than was known"),
        pytest.param(4, 4, [5, 6, 7], 0, [4, 5, 6, 7], id="begins within the guess"),
        pytest.param(4, 4, [9], 2, [4, 9], id="differs from the guess"),
        pytest.param(3, 3, [], 0, [4, 5, 6], id="withdraws a grant"),
        pytest.param(1, 1, [2, 3, 4, 5, 6, 7], 0, [4, 5, 6, 7], id="begins within the text"),
        pytest.param(1, 1, [2, 9], 0, [4, 5, 6], id="differs from the text"),
        pytest.param(1, 1, [2], 0, [4, 5, 6], id="ends within the text"),
        pytest.param(3, 9, [4], None, [4, 5, 6], id="follows another token of the text"),
        pytest.param(5, 9, [6], None, [4, 5, 6], id="follows another token of the guess"),
        pytest.param(7, 6, [7], None, [4, 5, 6], id="begins beyond the guess"),
        pytest.param(0, 3, [4], None, [4, 5, 6], id="begins before the text"),
    ],
)
def test_new_proposal_extends_or_replaces_the_verifiers_pending_tokens(
    guess: Guess, known: int, last: int, proposed: list[int], dropped: int | None, pending: list[int]
) -> None:
    assert guess.propose(known, last, tuple(proposed)) == dropped
    assert (guess.tokens, guess.decided, guess.pending) == (TEXT + pending, 3, pending)


@pytest.mark.parametrize(
    ("tokens", "agreed", "pending"),
    [
        pytest.param([4], 1, [5, 6], id="a part of the guess"),
        pytest.param([4, 5, 6], 3, [], id="all of it"),
        pytest.param([4, 5, 6, 7], 3, [], id="all of it and one more"),
        pytest.param([4, 9], 1, [], id="another way"),
        pytest.param([9], 0, [], id="another way at once"),
    ],
)
def test_verifier_keeps_pending_proposed_tokens_that_agree_with_decided_tokens(
    guess: Guess, tokens: list[int], agreed: int, pending: list[int]
) -> None:
    assert guess.decide(tokens) == agreed
    assert (guess.tokens, guess.decided, guess.pending) == (TEXT + tokens + pending, 3 + len(tokens), pending)


def test_verifiers_pending_tokens_can_be_cut_and_left_out_of_text_within_a_with_block(guess: Guess) -> None:
    with guess.aside():
        assert guess.tokens == TEXT
    assert guess.cut(2) == 1
    assert guess.pending == [4, 5]
    assert guess.cut() == 2
    assert guess.tokens == TEXT
