#!/bin/sh
# unpacked.sh PROGRAM PACKAGE: prints where PROGRAM is: installed, or unpacked from Debian's PACKAGE into build/packages.
# Unpacked and not installed: that needs no rights, and starts no service that listens where nobody asked for it.
# With --find before them nothing is fetched. Fails, saying what to install, where there is none.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh
fetch=yes
if [ "$1" = --find ]; then fetch=no; shift; fi
program=$1 package=$2
folder=build/packages/$package

if command -v "$program" 2>/dev/null; then exit 0; fi
if [ -x "$folder/usr/bin/$program" ]; then echo "$PWD/$folder/usr/bin/$program"; exit 0; fi
if [ $fetch = no ]; then exit 1; fi
if ! command -v apt-get >/dev/null 2>&1; then
    say "no $program: install it (macOS: brew install $program)"
    exit 1
fi

say "fetching $package with apt-get (unpacked into $folder, not installed)"
mkdir -p "$folder"
download() { (cd "$folder" && apt-get download -q "$package" >/dev/null 2>&1); }
download || { as_root apt-get update -q >/dev/null 2>&1 && download; } || {
    say "no $program: apt-get install $package"
    exit 1
}
dpkg -x "$folder/$package"_*.deb "$folder"
rm -f "$folder"/*.deb
echo "$PWD/$folder/usr/bin/$program"
