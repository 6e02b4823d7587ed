"""Some of the drawn schemas; `python -m tests.schemas` has all of them."""

from __future__ import annotations

from typing import Any

import pytest

from draftd.engine.pair import load_models
from tests.schemas.conformance import examined
from tests.schemas.drawn import COUNT, schemas


@pytest.mark.timeout(300)
def test_every_answer_under_a_json_schema_is_valid(nano_pair: Any):
    # The draft in the target's place as well: most texts of its own are cut by a grammar, at a tenth of the cost.
    models = load_models(nano_pair.draft, nano_pair.draft, progress=lambda line: None)
    some = schemas()[37::80]
    found = examined(models, some)
    assert not found.wrong
    assert found.counts["answers"] == 4 * len(some) == 4 * (COUNT // 80)
