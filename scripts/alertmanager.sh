#!/bin/sh
# Prints where Alertmanager is: installed (`alertmanager`, or the name that Debian gave it), or unpacked from Debian's
# package. With --find nothing is fetched. Fails, saying what to install, where there is none.
# Trap: Debian's build reads its templates from one fixed folder and does not start without them, so an unpacked one
# needs them copied there. That is all it needs root for.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh
package=prometheus-alertmanager
templates=usr/share/prometheus/alertmanager

if command -v alertmanager 2>/dev/null; then exit 0; fi
if ! command -v "$package" >/dev/null 2>&1 && ! command -v apt-get >/dev/null 2>&1; then
    say "no Alertmanager: put \`alertmanager\` on the PATH (https://prometheus.io/download/#alertmanager)"
    exit 1
fi
program=$(sh scripts/unpacked.sh ${1:+"$1"} "$package" "$package") || exit 1
if [ ! -f "/$templates/default.tmpl" ]; then
    if [ "${1:-}" = --find ]; then exit 1; fi
    { as_root mkdir -p "/$templates" && as_root cp "build/packages/$package/$templates"/*.tmpl "/$templates"; } || {
        say "no Alertmanager: apt-get install $package (an unpacked one lacks /$templates)"
        exit 1
    }
fi
echo "$program"
