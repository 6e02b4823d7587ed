"""`python -m draftd`: the same as `draftd`."""

from draftd.cli import main

main()
