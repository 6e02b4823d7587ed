#!/bin/sh
# Makes .venv and installs draftd into it: `setup.sh run` for the daemon alone, `setup.sh dev` with tests and checks.
# It is safe to run again. PYTHON=… names the interpreter to use.
set -eu
cd "$(dirname "$0")/.."
want=${1:-run}

. scripts/common.sh
die() { say "$*"; exit 1; }

apt_install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    say "installing $* with apt-get"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$@" >/dev/null 2>&1 && return 0
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q >/dev/null 2>&1 || return 1
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$@" >/dev/null 2>&1
}

suitable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14 \
        /opt/homebrew/bin/python3 /usr/local/bin/python3 /usr/bin/python3; do
        if suitable "$candidate"; then echo "$candidate"; return; fi
    done
    return 1
}

if ! suitable .venv/bin/python; then
    python=$(find_python) || die "needs Python 3.11 or later (Debian: apt-get install python3-venv; macOS: brew install python)"
    rm -rf .venv
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        # Debian has the venv module in a package of its own.
        version=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        apt_install "$version" || die "needs Python's venv module: apt-get install $version"
    fi
    say "making .venv with $("$python" --version)"
    "$python" -m venv .venv
fi

.venv/bin/python scripts/supported.py

case $want in
    run) package='.[grafana,report]' ;;
    dev) package='.[dev]' ;;
    *) die "setup.sh takes run or dev, not $want" ;;
esac
pip_install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$@"; }

# uv takes ten seconds where pip takes a minute. It does not read pip's settings: with a package index set there, pip
# installs.
install() {
    if [ -x .venv/bin/uv ] && UV_NATIVE_TLS=1 .venv/bin/uv pip install --quiet \
        --python .venv/bin/python -c constraints.txt "$@"; then return; fi
    pip_install "$@"
}

say "installing into .venv (less than a minute, or two with pip)"
if ! .venv/bin/python -m pip config list | grep -q index; then
    pip_install --no-compile uv || say "uv is not available: pip installs"
fi
install -e "$package"
# Compiles only what serving imports; to compile all would take a minute.
PYTHONDONTWRITEBYTECODE= .venv/bin/python -c 'import draftd.cli.commands.compare, draftd.cli.serve'

# Without a fast BLAS prompts take about ten times as long on Linux: see daemon/draftd/models/blas.py.
blas() { .venv/bin/python -c 'from draftd.models.blas import load_blas; print(load_blas())'; }
if [ "$(blas)" = reference ]; then
    apt_install libopenblas0-pthread || true
    if [ "$(blas)" = reference ]; then
        say "no libopenblas.so.0 and no right to install it: trying Intel's MKL in .venv instead"
        install mkl >/dev/null 2>&1 || true
    fi
    if [ "$(blas)" = reference ]; then
        say "no fast BLAS: decoding will be slow. Install one: apt-get install libopenblas0-pthread"
    fi
fi
