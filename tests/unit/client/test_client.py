"""What is asked is what is sent."""

from __future__ import annotations

import inspect

from draftd.client.client import Ask, message_of


def test_a_question_has_the_fields_that_a_client_takes() -> None:
    taken = dict(inspect.signature(message_of).parameters)
    for name in ("more", "continue_final_message"):  # with which no command asks
        del taken[name]
    assert set(vars(Ask())) == set(taken)
