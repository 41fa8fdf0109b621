"""Whether the C half of the Python module compiles without the limited API,
as it must for interpreters that have none: those without a global lock.

    full_api.py CC SOURCE_ROOT [PYTHON...]

Checked are the headers of each PYTHON that is there, a command; nothing is
linked or run. Exits with 77 where none of them is.
"""

import shutil
import subprocess
import sys
from pathlib import Path

FLAGS = (
    "-std=gnu11", "-D_GNU_SOURCE", "-DTRD_FULL_API", "-Wall", "-Wextra",
    "-Wshadow", "-Wundef", "-Werror", "-fsyntax-only",
)
ASK = "import sysconfig; print(sysconfig.get_path('include'))"


def headers_of(python):
    """The folder of an interpreter's headers, or None."""
    command = shutil.which(python)
    if command is None:
        return None
    asked = subprocess.run(
        [command, "-c", ASK], capture_output=True, text=True, check=True
    )
    folder = Path(asked.stdout.strip())
    return folder if Path(folder, "Python.h").exists() else None


def compiles(cc, root, headers):
    """Whether every source does; the compiler says where not."""
    sources = sorted(Path(root, "client/python").glob("*.c"))
    assert sources, root
    bad = 0
    for source in sources:
        command = [
            *cc, *FLAGS, "-I", root, "-I", str(Path(root, "include")),
            "-isystem", str(headers), str(source),
        ]
        if subprocess.run(command).returncode:
            bad += 1
    return bad == 0


def main(cc, root, *pythons):
    found = {p: h for p in pythons if (h := headers_of(p))}
    for python in pythons:
        print(f"{python}: {found.get(python, 'not there')}")
    if not found:
        return 77
    return int(not all(compiles(cc.split(), root, h) for h in found.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
