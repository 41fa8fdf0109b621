"""Adds up the cases of meson's test logs: count.py TESTLOG.json... BUILD...

A cmocka program counts as its cases, a pytest file as its tests, anything
else as one; a build without a log, which did not get as far as tests, as one
failure. Prints "N passed, N failed[, N skipped]" and exits non-zero on
a failure.
"""
import json
import re
import sys

passed = failed = skipped = 0
for path in sys.argv[1:]:
    if not path.endswith(".json"):
        failed += 1
        print("does not build: %s" % path)
        continue
    with open(path, encoding="utf-8") as log:
        tests = [json.loads(line) for line in log]
    for test in tests:
        text = test.get("stdout", "") + test.get("stderr", "")
        good = text.count("[       OK ]")
        bad = len(re.findall(r"^\[  FAILED  \] test", text, re.M))
        for n, word in re.findall(r"(\d+) (passed|failed|error)", text):
            if word == "passed":
                good += int(n)
            else:
                bad += int(n)
        if test["result"] == "SKIP":
            skipped += 1
            continue
        if test["result"] not in ("OK", "EXPECTEDFAIL"):
            failed += max(bad, 1)
            passed += good
            print("failed: %s (%s)" % (test["name"], path))
        else:
            passed += max(good, 1)
if skipped:
    print("%d skipped: what they need is not here" % skipped)
print("%d passed, %d failed" % (passed, failed))
sys.exit(failed > 0)
