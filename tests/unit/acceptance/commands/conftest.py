"""Fixtures for the tests of the harness's commands: those of the other commands."""

from tests.unit.cli.conftest import daemon, draftd, logging_as_it_was  # noqa: F401  fixtures
