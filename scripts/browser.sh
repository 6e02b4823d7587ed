#!/bin/sh
# Prints the path of a Chromium. Only where CI is set, and without --find, it installs Debian's package and a font: a
# browser is a lot to install for a test. If there is none, it says what to install and fails.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

find_one() {
    for name in chromium chromium-browser google-chrome \
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" \
        /Applications/Chromium.app/Contents/MacOS/Chromium; do
        if command -v "$name" 2>/dev/null; then return 0; fi
    done
    return 1
}

if find_one; then exit 0; fi
if [ "${1:-}" != --find ] && [ "${CI:-}" = true ] && command -v apt-get >/dev/null 2>&1; then
    # A fresh machine may lack the package lists. One source that cannot be updated is no reason to stop.
    as_root apt-get update -qq >&2 || true
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >&2 || true
    if find_one; then exit 0; fi
fi
say "no browser: apt-get install chromium fonts-dejavu-core (macOS: brew install --cask chromium)"
exit 1
