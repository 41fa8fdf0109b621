"""Runs a command and keeps what it says: ptxas tells registers and spills.

usage: nvcc.py LOG COMMAND...
"""

import subprocess
import sys

log, *command = sys.argv[1:]
done = subprocess.run(
    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
)
with open(log, "w") as f:
    f.write(done.stdout)
if done.returncode:
    sys.stderr.write(done.stdout)
else:
    for line in done.stdout.splitlines():
        if "warning" in line:
            print(line)
sys.exit(done.returncode)
