#!/bin/sh
# Prints the path of an OpenTelemetry Collector for otel-collector/config.yaml: the installed otelcol-contrib, or one
# built from otel-collector/builder.yaml with Go. The build takes minutes, and is kept in build/otelcol until the manifest
# changes. `collector.sh --find` builds nothing. If there is none, it says what to install and fails.
set -eu
cd "$(dirname "$0")/.."
manifest=otel-collector/builder.yaml
folder=build/otelcol
version=$(sed -n 's/^  version: *//p' "$manifest")

. scripts/common.sh

if command -v otelcol-contrib 2>/dev/null; then exit 0; fi
if [ -x "$folder/otelcol-draftd" ] && cmp -s "$manifest" "$folder/builder.yaml"; then
    echo "$PWD/$folder/otelcol-draftd"
    exit 0
fi
if [ "${1:-}" = --find ]; then exit 1; fi
if ! command -v go >/dev/null 2>&1; then
    say "no OpenTelemetry Collector: install otelcol-contrib, or Go 1.26 or later to build one (macOS: brew install go)"
    exit 1
fi

say "building the OpenTelemetry Collector $version (some minutes, once)"
mkdir -p "$folder"
rm -f "$folder/builder.yaml"
{
    GOBIN="$PWD/$folder/bin" go install "go.opentelemetry.io/collector/cmd/builder@v$version"
    "$folder/bin/builder" --config "$manifest" --output-path "$folder/source"
} >"$folder/build.log" 2>&1 || { tail -n 15 "$folder/build.log" >&2; say "the build failed: $folder/build.log"; exit 1; }
mv "$folder/source/otelcol-draftd" "$folder/otelcol-draftd"
cp "$manifest" "$folder/builder.yaml"
echo "$PWD/$folder/otelcol-draftd"
