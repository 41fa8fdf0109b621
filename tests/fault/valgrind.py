"""Client, daemon and tracectl under valgrind: valgrind.py TRACERD TRACECTL
CLIENT, the last being test_client_faults, which trains by `train DIR`.

An error or a leak of any of the three fails it; without valgrind it is
skipped."""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile

ERROR = 99
VALGRIND = [
    "valgrind", "-q", f"--error-exitcode={ERROR}", "--leak-check=full",
    "--errors-for-leak-kinds=definite,indirect,possible",
    "--track-fds=no", "--child-silent-after-fork=yes",
]


def held(fault, cases, how):
    path = os.environ.get("TRD_FAULTS_HELD")
    if path:
        with open(path, "a") as f:
            f.write(f"{fault}\t{cases}\t{how}\n")


def run(*command, codes=(0,)):
    with tempfile.TemporaryFile() as out:  # the client seeks in it
        done = subprocess.run(
            [*VALGRIND, *command], stdout=out, stderr=subprocess.PIPE,
            text=True, timeout=300,
        )
    sys.stderr.write(done.stderr)
    assert done.returncode in codes, (command, done.returncode)


def start(tracerd, folder):
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [*VALGRIND, tracerd, "--foreground", "--dir", folder, "--data",
         f"{folder}/data", "--ready-fd", str(writer)],
        pass_fds=[writer],
    )
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], 120)
    assert ready and os.read(reader, 64), "the daemon does not start"
    os.close(reader)
    return process


def main():
    tracerd, tracectl, client = sys.argv[1:]
    if not shutil.which("valgrind"):
        print("no valgrind")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="trd") as folder:
        daemon = start(tracerd, folder)
        try:
            # 1: a call took long, which it may here
            run(client, "train", folder, codes=(0, 1))
            run(client, "train", folder, codes=(0, 1))
            for command in (["runs"], ["status"], ["query", "*"],
                            ["-o", "json", "query", "forward-*"]):
                run(tracectl, "-s", folder, *command, codes=(0, 1))
        finally:
            daemon.send_signal(signal.SIGTERM)
            code = daemon.wait(120)
        assert code == 0, f"the daemon ended with {code}"
        run(tracectl, "verify", f"{folder}/data", codes=(0, 1))
    held(45, 3, "valgrind: client, daemon, tracectl")


main()
