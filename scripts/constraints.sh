#!/bin/sh
# Writes constraints.txt: resolves the newest versions in a fresh environment and pins all of them.
set -eu
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
.venv/bin/python -m venv "$fresh/venv"
"$fresh/venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade -e '.[dev]' setuptools uv
pinned=$("$fresh/venv/bin/python" -m pip list --disable-pip-version-check --exclude-editable --format=freeze | grep -v '^pip==')
mkl=$(grep '^mkl==' constraints.txt)
{
    echo "# What was tested: every package that an installation with the dev extra has. \`make constraints\` writes this file."
    echo "# A constraint only constrains: what a platform does not need (mlx-cpu, mlx-metal, mkl) is not installed there."
    # MLX's two backends carry MLX's own version; only one of them can be installed here.
    mlx=$(printf '%s\n' "$pinned" | sed -n 's/^mlx==//p')
    printf '%s\n' "$pinned" "mlx-cpu==$mlx" "mlx-metal==$mlx" "$mkl" | sort -fu
} >"$fresh/constraints.txt"
cp "$fresh/constraints.txt" constraints.txt
