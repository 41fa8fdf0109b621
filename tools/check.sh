#!/bin/sh
# Installs what is needed, builds with gcc and clang, runs every test, also
# under sanitizers; ends with "N passed, N failed".
# usage: sh tools/check.sh [--quick | --frameworks | --battery | --scale]
# --quick: one build, no sanitizers, no fuzzing. --frameworks: only the
# trainings of tests/python/test_frameworks.py, with every framework they
# know, in an environment of its own. --battery: only tests/python/test_battery,
# of all kinds of models, whose table says what tracectl compare and other
# tools are right about. --scale: only tests/bench/bench_scale.py, with 100
# million records (17 GB, half an hour). FUZZ_SECONDS: for each fuzz target,
# 20 if not said.
set -eu
cd "$(dirname "$0")/.."
. tools/setup.sh
quick=
[ "${1:-}" != --quick ] || quick=1
frameworks=
[ "${1:-}" != --frameworks ] || frameworks=1 venv=.venv-frameworks
battery=
[ "${1:-}" != --battery ] || battery=1
scale=
[ "${1:-}" != --scale ] || scale=1

# chromium and selenium look at the page of tracectl report
# shellcheck disable=SC2086
setup_packages $packages libcurl4-openssl-dev clickhouse-server \
    libcmocka-dev chromium chromium-driver clang fish iproute2 \
    libclang-rt-14-dev locales openssl procps strace util-linux valgrind zsh
setup_python torch=torch==2.13.0 numpy=numpy mesonbuild=meson \
    mesonpy=meson-python pytest=pytest selenium=selenium
# what tracerd.load() needs
setup_python pyarrow=pyarrow adbc_driver_sqlite=adbc-driver-sqlite \
    pandas=pandas
# a current ClickHouse, for its tables
setup_python chdb=chdb
# the rest of them is large: --frameworks
setup_python transformers=transformers==5.24.0 accelerate=accelerate==1.15.0

meson="$PWD/$venv/bin/python -m mesonbuild.mesonmain"
status=0
logs=
broken=

# one_build NAME SUITES [OPTION...]; targets: of ninja, all when empty
one_build() {
    name=$1 suites=$2
    shift 2
    echo "building and testing: $name"
    CC=${cc:-gcc} setup_build "$name" "$@" || {
        broken="$broken $name"
        return 0
    }
    # shellcheck disable=SC2086
    TRD_FAULTS_ALL=$all_faults $meson test -C "$name" --no-rebuild \
        --print-errorlogs -t 4 $suites || status=1
    logs="$logs $name/meson-logs/testlog.json"
}

targets=
all_faults=0
if [ -n "$frameworks" ]; then
    # DeepSpeed would compile operators
    DS_BUILD_OPS=0 $venv/bin/python -m pip install -q \
        --disable-pip-version-check -r tests/python/frameworks.txt
    export TRD_FRAMEWORKS=all # none may be skipped
    one_build build-frameworks "--suite frameworks" --werror
    $venv/bin/python tests/count.py $logs $broken || status=1
    exit $status
fi
if [ -n "$battery" ]; then
    export TRD_BATTERY=all
    one_build build-check "--suite battery --verbose" --werror
    $venv/bin/python tests/count.py $logs $broken || status=1
    exit $status
fi
if [ -n "$scale" ]; then
    export TRD_RECORDS=100000000
    one_build build-check "--suite scale --verbose" --werror
    $venv/bin/python tests/count.py $logs $broken || status=1
    exit $status
fi
# this one runs all there is: no fault may be missing in its table
all_faults=1
one_build build-check "" --werror
all_faults=0
if [ -z "$quick" ]; then
    # the storms of suite fault take minutes, and longer under sanitizers
    c_suites="--no-suite python --no-suite fault"
    cc=clang one_build build-clang "$c_suites" -Dpython=false \
        -Dcuda=disabled --werror
    # gcc 12 sees false errors in code it has instrumented: warnings there
    one_build build-asan "$c_suites" -Dpython=false \
        -Db_sanitize=address,undefined
    one_build build-tsan "$c_suites" -Dpython=false -Db_sanitize=thread
    targets=fuzzers
    cc=clang one_build build-fuzz "--suite fuzzing" -Dfuzz=true \
        -Dpython=false -Dcuda=disabled -Db_lundef=false \
        -Dc_args=-fsanitize=fuzzer-no-link \
        -Dc_link_args=-fsanitize=fuzzer-no-link \
        -Db_sanitize=address,undefined
fi
# shellcheck disable=SC2086
$venv/bin/python tests/count.py $logs $broken || status=1
exit $status
