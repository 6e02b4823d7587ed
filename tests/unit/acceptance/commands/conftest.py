"""The commands of the harness are run as the others are."""

from tests.unit.cli.conftest import daemon, draftd, logging_as_it_was  # noqa: F401  fixtures
