# Sourced by quickstart.sh and check.sh: installs what is missing.
#
# Debian packages by apt-get (as root, or with sudo), Python packages into
# $venv in the repository. What is there already is left alone.
venv=.venv

# setup_packages NAME...: Debian packages
setup_packages() {
    missing=
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null |
            grep -q 'ok installed' || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    echo "installing$missing"
    as_root=
    [ "$(id -u)" = 0 ] || as_root=sudo
    $as_root apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq \
        --no-install-recommends $missing >/dev/null
}

# setup_python MODULE=REQUIREMENT...: a $venv that can import each module.
# A torch that the system's Python has is used instead of another copy.
setup_python() {
    python3 -c 'import os, sysconfig as s, sys
sys.exit(not os.path.exists(s.get_paths()["include"] + "/Python.h"))' ||
        setup_packages python3-dev
    if [ ! -x $venv/bin/python ]; then
        python3 -c 'import ensurepip' 2>/dev/null ||
            setup_packages python3-venv
        share=
        python3 -c 'import torch' 2>/dev/null && share=--system-site-packages
        # shellcheck disable=SC2086
        python3 -m venv $share $venv
    fi
    for pair in "$@"; do
        $venv/bin/python -c "
import importlib.util, sys
sys.exit(importlib.util.find_spec('${pair%%=*}') is None)" ||
            $venv/bin/python -m pip install -q \
                --disable-pip-version-check "${pair#*=}"
    done
}

# setup_build DIR [OPTION...]: configures once, builds what has changed of
# $targets, of all where that is empty.
setup_build() {
    build=$1
    shift
    [ -f "$build/build.ninja" ] ||
        $venv/bin/python -m mesonbuild.mesonmain setup "$build" "$@" \
            >"$build.log" 2>&1 || {
        cat "$build.log"
        return 1
    }
    # shellcheck disable=SC2086
    ninja -C "$build" ${targets:-} >"$build.log" 2>&1 || {
        cat "$build.log"
        return 1
    }
}

packages="build-essential pkg-config ninja-build libuv1-dev libnanomsg-dev \
libsqlite3-dev libjson-c-dev"
