"""Files of runs that no training made: of any size, and with any names.

They are written straight from the schema, as the daemon would: a small
transformer, forward, backward and gradients of parameters in the order of
execution, with figures that differ from record to record.
"""

import json
import os
import random
import sqlite3
import struct
from pathlib import Path
from zlib import crc32

SCHEMA = Path(__file__).resolve().parents[2] / "proto/schema.sql"
SAMPLES = 16
EACH = 4096  # elements
COLUMNS = (
    "step, object, pass, stream, io, position, seq, t_ns, iteration,"
    " microbatch, labels, path, dtype, shape, nan, pinf, ninf, zero,"
    " subnormal, max, min, absmin, mean, std, l2, hash, samples"
)
FORWARD, BACKWARD, GRAD = 1, 2, 3
PARTS = [
    ("ln1", "LayerNorm"), ("attn.qkv", "Linear"), ("attn.drop", "Dropout"),
    ("attn.proj", "Linear"), ("attn", "Attention"), ("ln2", "LayerNorm"),
    ("mlp.fc1", "Linear"), ("mlp.act", "GELU"), ("mlp.fc2", "Linear"),
    ("mlp", "MLP"), ("", "Block"),
]


def chance(*of):
    """Random numbers that depend on nothing else."""
    return random.Random(crc32(repr(of).encode()))


def transformer(blocks):
    """(path, class) of its modules, in the order in which they end."""
    inside = [
        (f"blocks.{i}.{name}".rstrip("."), kind)
        for i in range(blocks)
        for name, kind in PARTS
    ]
    last = [("norm", "LayerNorm"), ("head", "Linear"), ("", "GPT")]
    return [("embed", "Embedding"), *inside, *last]


class Run:
    """What is put into a run; make() writes it.

    shift(module, pass, iteration, rank) is the relative error of a record,
    0 for the same bits; hole(...) the number of its NaN.
    """

    def __init__(self, modules, steps, ranks=1, shift=None, hole=None,
                 info=None):
        self.modules, self.steps, self.ranks = modules, steps, ranks
        self.shift = shift or (lambda *_: 0)
        self.hole = hole or (lambda *_: 0)
        self.info = info or {"torch": "2.13.0", "threads": 4}

    def rows(self, rank):
        seq = 0
        backward = list(enumerate(self.modules, 1))[::-1]
        for step in range(1, self.steps + 1):
            calls = [
                (FORWARD, io, i, m)
                for i, m in enumerate(self.modules, 1)
                for io in (1, 2)
            ]
            calls += [(BACKWARD, io, i, m) for i, m in backward
                      for io in (1, 2)]
            calls += [(GRAD, 0, i, m) for i, m in backward
                      if m[1] == "Linear"]
            for what, io, i, module in calls:
                seq += 1
                yield self.row(step, what, io, i, module, rank, seq)

    def before(self, i, what):
        """The module whose output a call gets; None for the first."""
        at = i - 2 if what == FORWARD else i
        return self.modules[at][0] if 0 <= at < len(self.modules) else None

    def row(self, step, what, io, i, module, rank, seq):
        name = module[0]
        if io == 1:
            name = self.before(i, what)
        own = chance(name, what, step, rank)
        size = 10 ** own.uniform(-1.5, 0.5) * (1 if what == FORWARD else 1e-3)
        shift = self.shift(name, what, step, rank) if name is not None else 0
        hole = self.hole(name, what, step, rank) if name is not None else 0
        values = [own.gauss(0, size) for _ in range(SAMPLES)]
        mean, grown = size * 0.01 * own.gauss(0, 1), own.uniform(0.05, 0.1)
        for k in range(SAMPLES if shift else 0):
            values[k] += shift * size * own.choice((-1, 1))
        grown = 1 + shift * grown
        samples = struct.pack(f"<{SAMPLES}f", *values)
        word = crc32(f"{name} {what} {step} {rank} {shift} {hole}".encode())
        return (
            step, i, what, rank, io, 0, seq, seq * 20_000, step, 1, 0,
            i + 1 if what == GRAD else 1, 2, 1, hole, 0, 0, 0, 0,
            4 * size, -4.1 * size, size * 1e-4, mean, size * grown,
            size * grown * EACH**0.5, word, samples,
        )


def make(path, run):
    """Writes the file; its name is that of the run."""
    db = sqlite3.connect(path)
    db.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;")
    db.executescript(SCHEMA.read_text())
    name = os.path.basename(path)[: -len(".db")]
    db.executemany("INSERT INTO meta VALUES(?, ?)",
                   [("name", name), ("created_ns", 1)])
    db.execute("INSERT INTO shape VALUES(1, '64 64', ?)", (EACH,))
    db.execute("INSERT INTO path VALUES(1, '0')")
    count = {}
    for i, (module, kind) in enumerate(run.modules, 1):
        count[kind] = count.get(kind, 0) + 1
        db.execute("INSERT INTO object VALUES(?, ?, ?, ?)",
                   (i, kind, count[kind], module))
        db.execute("INSERT INTO path VALUES(?, ?)",
                   (i + 1, f"{module}.weight"))
    marks = ", ".join("?" * 27)
    for rank in range(run.ranks):
        n = db.total_changes
        db.executemany(f"INSERT INTO record({COLUMNS}) VALUES({marks})",
                       run.rows(rank))
        db.execute(
            "INSERT INTO stream(id, attempt, rank, epoch, world, pid,"
            " start_time, boot_id, host, uid, client, real_ns, mono_ns, info,"
            " seq, dict_n, state) VALUES(?, 0, ?, ?, ?, 1, 1, '', '', 0, '',"
            " 0, 0, ?, ?, 0, 'ended')",
            (rank, rank, rank + 1, run.ranks, json.dumps(run.info),
             db.total_changes - n),
        )
    db.commit()
    db.close()
    return str(path)


def rounding(module, what, step, rank):
    """Errors of a few units, as two kernels have them."""
    own = chance(module, what, step, rank, "rounding")
    depth = int(module.split(".")[1]) if module.startswith("blocks") else 0
    return 2**-24 * own.uniform(0.6, 1.5) * (1 + depth / 4) * step**0.3


def fault(culprit, modules, amount=3e-3):
    """Rounding up to the culprit, and from there on what it hands on."""
    order = {m: i for i, (m, _) in enumerate(modules)}

    def shift(module, what, step, rank):
        own = chance(module, what, step, rank, "fault")
        hit = what != FORWARD or step > 1 or order[module] >= order[culprit]
        if not hit:
            return rounding(module, what, step, rank)
        far = abs(order[module] - order[culprit]) / len(modules)
        return amount * own.uniform(0.5, 1) * (1 - 0.6 * far) * step**0.2

    return shift
