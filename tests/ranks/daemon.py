"""`python -m tests.ranks.daemon …`: runs `draftd` unchanged, except that a lost group starts again within two seconds,
however often it was lost."""

from __future__ import annotations

from draftd.cli.main import main
from draftd.process import handle

if __name__ == "__main__":
    handle._LONGEST_PAUSE_SECONDS = 2.0
    main()
