#!/bin/sh
# Generates daemon/draftd/v1 from proto/. With --check it changes nothing, and fails if the files differ.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT

(
    cd proto
    "../$python" -m grpc_tools.protoc -I. \
        --python_out="$fresh" --pyi_out="$fresh" --grpc_python_out="$fresh" draftd/v1/*.proto
)
if [ "${1:-}" = --check ]; then
    diff -r -x __init__.py -x __pycache__ "$fresh/draftd/v1" daemon/draftd/v1 || {
        echo "daemon/draftd/v1 is not what proto/ generates: run make proto" >&2
        exit 1
    }
else
    rm -f daemon/draftd/v1/*_pb2*.py daemon/draftd/v1/*_pb2.pyi
    cp "$fresh"/draftd/v1/* daemon/draftd/v1/
fi
