"""Every line of the original script's log can be had from a trace."""

from collections import defaultdict

from programs import TOP, python

SIZES = 16, 12, 512, 688
SCRIPT = TOP / "tests/python/original_script.py"


def lines_of(text):
    """{(name, index): [the line from its shape on, ...]} in order."""
    found = defaultdict(list)
    for line in text.splitlines():
        _, _, name, index, rest = line.split(",", 4)
        found[name, index].append(rest)
    return found


def same(ours, theirs):
    """Byte for byte, but for the last digit of mean and std, which the
    script computes in single precision."""
    shape, _, a = ours.rpartition("]")
    other, _, b = theirs.rpartition("]")
    a, b = a[1:].split(","), b[1:].split(",")
    if shape != other or len(a) != len(b):
        return False
    close = [abs(float(a[i]) - float(b[i])) < 1.5e-5 for i in (2, 3)]
    return a[:2] + a[4:] == b[:2] + b[4:] and all(close)


def test_every_line_is_there(daemon):
    log = python(SCRIPT, "log", *SIZES).stdout
    python(SCRIPT, "trace", *SIZES, "seed", folder=daemon.dir)
    out = f"{daemon.dir}/seed.log"
    daemon.tracectl("export", "seed", "--format", "seed", "--out", out)
    with open(out) as f:
        exported = lines_of(f.read())
    wanted = lines_of(log)
    assert sum(map(len, wanted.values())) == 24
    for key, lines in wanted.items():
        assert len(exported[key]) >= len(lines), key
        for ours, theirs in zip(exported[key], lines, strict=False):
            assert same(ours, theirs), (key, ours, theirs)
