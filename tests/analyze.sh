#!/bin/sh
# The static analysers of gcc and clang over the C sources, in the two that
# are there. usage: analyze.sh SOURCE_ROOT BUILD_ROOT [gcc|clang]...
#
# What they may say is in analyze.txt, each with why it is no fault; a finding
# that is not there fails.
set -eu
cd "$1"
build=$2
shift 2
[ $# -gt 0 ] || set -- gcc clang
found=$(mktemp)
trap 'rm -f "$found"' EXIT
flags="-std=gnu11 -D_GNU_SOURCE -I. -Iinclude -I$build -I$build/proto
    -I$build/proto/clickhouse $(pkg-config --cflags libuv sqlite3 nanomsg json-c)"
python=$(python3-config --includes 2>/dev/null || true)
ran=0

for tool; do
    command -v "$tool" >/dev/null || continue
    case $tool in
    gcc) analyse="gcc -O1 -fanalyzer -c" ;;
    *) analyse="clang --analyze --analyzer-output text" ;;
    esac
    for file in client/*.c client/python/*.c proto/*.c \
        proto/clickhouse/*.c daemon/*.c tools/*.c; do
        case $file in
        client/python/*) [ -n "$python" ] || continue ;;
        esac
        # shellcheck disable=SC2086
        $analyse $flags $python "$file" -o /dev/null 2>&1 |
            sed -n "s/^\([^ :]*\):[0-9]*:[0-9]*: warning: \(.*\)/$tool \1 \2/p"
    done >>"$found"
    ran=$((ran + 1))
done
[ $ran -gt 0 ] || exit 77

known=tests/analyze.txt
bad=0
sort -u "$found" | {
    while IFS= read -r line; do
        grep -v '^#' "$known" | grep -qxF -- "$line" && continue
        echo "$line"
        bad=1
    done
    exit $bad
}
[ -z "${TRD_FAULTS_HELD:-}" ] ||
    printf '45\t%d\tstatic analysis: %s\n' $ran "$*" >>"$TRD_FAULTS_HELD"
