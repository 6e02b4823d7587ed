#!/bin/sh
# Prints the path of Alertmanager: installed (`alertmanager`, or Debian's name for it), or unpacked from Debian's package.
# With --find it downloads nothing. If there is none, it says what to install and fails.
# Debian's build does not start without the templates in one fixed folder. An unpacked one needs them copied there, and
# needs root only for that.
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
