"""Prints the table of faults: table.py HELD, the file the tests wrote to.

Of a run of all tests (TRD_FAULTS_ALL=1) a fault that nobody injected is a
failure; of a run of some it is left out (exit code 77 of a skipped test).
HELD is removed, so that the next run says what it did itself.
"""
import os
import pathlib
import sys

rows = []
text = pathlib.Path(__file__).with_name("faults.txt").read_text("utf-8")
for line in text.splitlines():
    if line and not line.startswith("#"):
        number, fault, why_not = line.split("\t")
        rows.append((int(number), fault, why_not))

held = {}
path = pathlib.Path(sys.argv[1])
if path.exists():
    for line in path.read_text("utf-8").splitlines():
        number, cases, how = line.split("\t")
        ways = held.setdefault(int(number), {})
        ways[how] = ways.get(how, 0) + int(cases)
    path.unlink()

missing = []
for number, fault, why_not in rows:
    print("%2d  %s" % (number, fault))
    for how, cases in held.get(number, {}).items():
        print("      %6d  %s: held" % (cases, how))
    if number not in held:
        print("              %s" % ("not here: " + why_not if why_not
                                    else "not injected in this run"))
        if not why_not:
            missing.append(number)
known = {number for number, _, _ in rows}
if held.keys() - known:
    sys.exit("faults without a row: %s" % sorted(held.keys() - known))
print("%d of %d faults injected, %d cases" % (
    len(held), len(rows), sum(sum(w.values()) for w in held.values())))
if missing:
    print("missing: %s" % missing)
    sys.exit(1 if os.environ.get("TRD_FAULTS_ALL") == "1" else 77)
