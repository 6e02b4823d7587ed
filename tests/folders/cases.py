"""Lists all folders."""

from __future__ import annotations

from tests.folders.configurations import CONFIGURATIONS
from tests.folders.right import RIGHT
from tests.folders.tokenizers import TOKENIZERS
from tests.folders.weights import WEIGHTS

CASES = (*RIGHT, *CONFIGURATIONS, *WEIGHTS, *TOKENIZERS)
