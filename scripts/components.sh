#!/bin/sh
# Finds, fetches or builds the real servers that tests/stack runs, and in CI a browser. A missing one is reported in a line
# and does not fail here: a test that needs it is skipped, or fails in CI.
cd "$(dirname "$0")/.." || exit 1
sh scripts/collector.sh >/dev/null || true
sh scripts/unpacked.sh prometheus prometheus >/dev/null || true
sh scripts/alertmanager.sh >/dev/null || true
if [ "${CI:-}" = true ]; then sh scripts/browser.sh >/dev/null || true; fi
