"""The fast kernels keep everything in registers: what ptxas said of them.

usage: gpu_spills.py LOG...
Exit 77 (skipped) where nothing was built for the architecture that is held
to it.
"""

import re
import sys

ARCH = "sm_90"
FAST = ("f32", "f16", "bf16")
NAME = re.compile(r"kernel_cuda_(\w+)\.log$")
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
PROPERTIES = re.compile(r"Function properties for (\w+)")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


def kernels(path):
    """(arch, registers, spills of the kernel, spills of what it calls)."""
    found, entry, arch, current = [], None, None, None
    with open(path) as log:
        for line in log:
            if m := ENTRY.search(line):
                entry, arch = m.groups()
                found.append([arch, 0, 0, 0])
            elif m := PROPERTIES.search(line):
                current = m.group(1)
            elif (m := SPILLS.search(line)) and found:
                found[-1][2 if current == entry else 3] += sum(
                    map(int, m.groups())
                )
            elif (m := USED.search(line)) and found:
                found[-1][1] = int(m.group(1))
    return found


def main():
    checked, bad = 0, 0
    for path in sys.argv[1:]:
        name = NAME.search(path).group(1)
        for arch, registers, spills, called in kernels(path):
            print(
                f"{name:8} {arch:7} {registers:4} registers,"
                f" {spills} bytes spilled, {called} in calls"
            )
            if name in FAST and arch == ARCH:
                checked += 1
                bad += spills > 0
    if not checked:
        return 77
    return 1 if bad else 0


sys.exit(main())
