"""What the linker was told to do against mistakes in memory, read from the
programs and libraries as they were built: hardened.py FILE...

Of each: position independent, all symbols bound at the start and read-only
from then on, no memory that is both written and executed, and no place where
a library would be looked for but beside the file itself. readelf of
binutils reads it.
"""
import pathlib
import re
import subprocess
import sys


def read(what, path):
    return subprocess.run(["readelf", "-W", what, path], check=True,
                          capture_output=True, text=True).stdout


def complaints(path):
    header, segments, dynamic = (read(o, path) for o in ("-h", "-l", "-d"))
    if not re.search(r"Type:\s+DYN", header):
        yield "is not position independent"
    if "GNU_RELRO" not in segments:
        yield "has no read-only relocations"
    if not re.search(r"\(FLAGS(_1)?\).*\b(BIND_)?NOW\b", dynamic):
        yield "binds symbols when they are called first"
    kinds = []
    for kind, flags in re.findall(
            r"^\s+(\w+)\s+0x.* ([R ][W ][E ]) 0x", segments, re.M):
        kinds.append(kind)
        if "E" in flags and ("W" in flags or kind == "GNU_STACK"):
            yield "has memory to write and execute (%s)" % kind
    if "GNU_STACK" not in kinds:
        yield "does not say that its stack is data"
    if "(TEXTREL)" in dynamic:
        yield "relocates its code"
    for run_path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic):
        for part in run_path.split(":"):
            # in the build directory; meson takes it away when it installs
            if part and not part.startswith("$ORIGIN"):
                yield "looks for libraries in '%s'" % part


bad = 0
for name in sys.argv[1:]:
    for line in complaints(pathlib.Path(name)):
        print("%s %s" % (name, line))
        bad += 1
print("%d files, %d complaints" % (len(sys.argv) - 1, bad))
sys.exit(bad > 0)
