"""Whether systemd takes the unit: service.py UNIT TRACERD. The installed
program is replaced by the one that was built; without systemd the test is
skipped.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

unit, program = sys.argv[1:]
if not shutil.which("systemd-analyze"):
    print("no systemd here")
    sys.exit(77)
text = pathlib.Path(unit).read_text("utf-8")
text, n = re.subn(r"(?m)^ExecStart=\S+", "ExecStart=" + str(
    pathlib.Path(program).resolve()), text)
assert n == 1, "one ExecStart"
with tempfile.TemporaryDirectory() as folder:
    copy = pathlib.Path(folder, "tracerd.service")
    copy.write_text(text, "utf-8")
    got = subprocess.run(
        ["systemd-analyze", "--user", "--man=no", "--recursive-errors=no",
         "verify", str(copy)],
        capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": folder,
             "XDG_RUNTIME_DIR": folder})
# complaints about other units of this machine are none of ours
if "Failed to initialize" in got.stderr:
    print(got.stderr)
    sys.exit(77)
mine = [line for line in got.stderr.splitlines() if "tracerd" in line]
print("\n".join(mine) or "systemd has nothing to say")
sys.exit(bool(mine))
