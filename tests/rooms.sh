#!/bin/sh
# Who may include whom: the table of the README's map, checked; and that no
# test lies about that nothing runs.
# usage: rooms.sh SOURCE_ROOT
set -eu
cd "$1"
bad=0

complain() {
    echo "$1"
    bad=1
}

# room, then what "..." and <...> may begin with; ISO C and POSIX are free
check() {
    room=$1 quoted=$2 angled=$3
    find "$room" \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) |
        while read -r file; do
            grep -nE '^[[:space:]]*#[[:space:]]*include' "$file" |
                while IFS= read -r line; do
                    n=${line%%:*}
                    what=$(printf '%s' "$line" |
                        sed -E 's/.*(["<][^">]*[">]).*/\1/')
                    name=$(printf '%s' "$what" | tr -d '"<>')
                    case $what in
                    \"*) allowed=$quoted ;;
                    *) allowed="$free $angled" ;;
                    esac
                    ok=no
                    for prefix in $allowed; do
                        case $name in "$prefix"*) ok=yes ;; esac
                    done
                    [ $ok = yes ] ||
                        echo "$file:$n: $room may not include $what"
                done
        done
}

free="assert. ctype. dirent. dlfcn. errno. fcntl. fenv. fnmatch. getopt. grp. inttypes. \
limits. locale. math. netinet/ poll. pthread. pwd. sched. setjmp. signal. \
spawn. stdarg. stdatomic. stdbool. stddef. stdint. stdio. stdlib. string. \
strings. sys/ syslog. termios. time. unistd. float. immintrin. xmmintrin. arm_neon. xlocale."

found=$(
    check include "tracerd/" ""
    check proto "tracerd/ proto/ schema.h clickhouse_" "sqlite3.h curl/"
    check client "tracerd/ proto/ client/" "Python.h structmember.h cuda"
    check daemon "tracerd/ proto/ daemon/ schema.h" "uv.h sqlite3.h malloc.h"
    check tools "tracerd/ proto/ tools/ schema.h" \
        "nanomsg/ sqlite3.h json-c/"
)
[ -z "$found" ] || complain "$found"

# each outside library enters by its named door
doors() {
    library=$1 allowed=$2
    grep -rlE "#[[:space:]]*include <$library" include proto client daemon \
        tools 2>/dev/null |
        while read -r file; do
            case " $allowed " in
            *" $file "*) ;;
            *) echo "$file: <$library enters through: $allowed" ;;
            esac
        done
}
found=$(
    doors "Python.h" "client/python/py.h"
    doors "nanomsg/" "tools/source_live.c"
    doors "json-c/" "tools/msprobe_tensors.c"
    grep -rl "<sqlite3.h>" include proto client | grep -v "^proto/sql.h$" || true
    doors "curl/" "proto/clickhouse/house.c"
)
[ -z "$found" ] || complain "$found"

# and nobody brings Python.h along by a header of client/python
found=$(
    grep -rnE '#[[:space:]]*include "client/python/' client |
        grep -v '^client/python/' || true
)
[ -z "$found" ] || complain "$found"

found=$(
    for file in tests/unit/test_*.c tests/component/test_*.c \
        tests/kernel/test_*.c tests/python/test_*.py; do
        [ -f "$file" ] || continue
        name=${file##*/test_}
        name=${name%.*}
        grep -qE "'(test_)?$name'" tests/meson.build ||
            echo "$file: tests/meson.build does not run it"
    done
)
[ -z "$found" ] || complain "$found"

exit $bad
