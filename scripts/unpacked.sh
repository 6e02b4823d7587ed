#!/bin/sh
# unpacked.sh PROGRAM PACKAGE: prints the path of PROGRAM: installed, or unpacked from Debian's PACKAGE into
# build/packages. An installation would need root rights, and would start a service that listens unasked.
# With --find before them it downloads nothing; with --pages also the scripts and fonts of its web pages. If there is no
# PROGRAM, it says what to install and fails.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh
fetch=yes pages=no
if [ "$1" = --find ]; then fetch=no; shift; fi
if [ "$1" = --pages ]; then pages=yes; shift; fi
program=$1 package=$2
folder=build/packages/$package

found() {
    if [ $pages = yes ] && [ ! -e "$folder/.pages" ]; then
        # Debian has the pages' scripts and fonts in packages of their own, to which this one has links.
        for one in $(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
            --no-replaces --no-enhances "$package" | grep -E '^(libjs|fonts)-' | sort -u); do
            unpack "$one" || say "without $one some pages of $program are empty"
        done
        touch "$folder/.pages"
    fi
    echo "$PWD/$folder/usr/bin/$program"
    exit 0
}

unpack() {
    (cd "$folder" && apt-get download -q "$1" >/dev/null 2>&1) || return 1
    dpkg -x "$folder/$1"_*.deb "$folder"
    rm -f "$folder"/*.deb
}

if command -v "$program" 2>/dev/null; then exit 0; fi
if [ -x "$folder/usr/bin/$program" ]; then found; fi
if [ $fetch = no ]; then exit 1; fi
if ! command -v apt-get >/dev/null 2>&1; then
    say "no $program: install it (macOS: brew install $program)"
    exit 1
fi

say "fetching $package with apt-get (unpacked into $folder, not installed)"
mkdir -p "$folder"
unpack "$package" || { as_root apt-get update -q >/dev/null 2>&1 && unpack "$package"; } || {
    say "no $program: apt-get install $package"
    exit 1
}
found
