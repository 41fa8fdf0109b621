#!/bin/sh
# From a fresh Debian machine to an answer: installs what is needed, builds,
# starts tracerd, trains a small model on two ranks and asks for one object.
# usage: sh tools/quickstart.sh
set -eu
cd "$(dirname "$0")/.."
. tools/setup.sh

# shellcheck disable=SC2086
setup_packages $packages
setup_python torch=torch==2.13.0 numpy=numpy mesonbuild=meson
build=build-quickstart
echo "building what a training on the CPU needs: a minute or so; see $build.log"
setup_build $build -Dtests=disabled -Dcuda=disabled

data=$PWD/$build/runs
run=quickstart-$(date +%Y%m%d-%H%M%S)
PATH=$PWD/$build/daemon:$PWD/$build/tools:$PWD/.venv/bin:$PATH
PYTHONPATH=$PWD/$build/client/python${PYTHONPATH:+:$PYTHONPATH}
TRACERD_DIR=$(mktemp -d)
export PATH PYTHONPATH TRACERD_DIR
daemon=
finish() {
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || :
    wait
    rm -rf "$TRACERD_DIR"
}
trap finish EXIT
trap 'exit 130' INT TERM

echo "starting tracerd"
mkdir -p "$data"
chmod 700 "$data"
mkfifo "$TRACERD_DIR/ready"
tracerd --foreground --data "$data" --ready-fd 3 \
    3>"$TRACERD_DIR/ready" 2>"$data/tracerd.log" &
daemon=$!
grep -q ready "$TRACERD_DIR/ready" || {
    cat "$data/tracerd.log"
    exit 3
}

echo "training on two ranks"
OMP_NUM_THREADS=1 TRACERD_RUN=$run python -m torch.distributed.run \
    --nproc-per-node 2 --log-dir "$data" tools/examples/linear.py

echo
echo "\$ tracectl query forward-CustomLinear-1-2"
tracectl query forward-CustomLinear-1-2
cat <<END

The run is kept in $data/$run.db. Three more commands worth typing:

  $build/tools/tracectl -d $data query 'grad-*'
  $build/tools/tracectl -d $data export --format seed
  $build/tools/tracectl -d $data sql 'SELECT object, step, max(absmax) FROM v_record GROUP BY object, step'

All of them: $build/tools/tracectl help, man tools/tracectl.1, man daemon/tracerd.8
END
