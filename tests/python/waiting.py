"""The records of table queue, read and written as FORMAT.md says."""

import struct

CASTAGNOLI = 0x82F63B78
HEAD = "stream seq object position path shape note".split()
COUNTS = "nan pinf ninf zero subnormal".split()
# bits of `has`
HAS_COUNTS, HAS_RANGE, HAS_ABS, HAS_MEAN, HAS_L2, HAS_HASH, GIVEN, MORE = (
    1 << i for i in range(8)
)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (CASTAGNOLI if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Bytes:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        self.at += n
        assert self.at <= len(self.data)
        return self.data[self.at - n:self.at]

    def get(self, form):
        value, = struct.unpack("<" + form, self.take(struct.calcsize(form)))
        return value

    def varint(self):
        value = shift = 0
        while True:
            byte = self.get("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def form_of(db, dtype):
    """How max, min, absmax and absmin of a dtype lie."""
    (name, special), = db.execute(
        "SELECT name, special FROM dtype WHERE id = ?", (dtype,)
    )
    if special == 0:
        return "q"
    wide = name in ("float64", "text") or name.startswith("complex")
    return "d" if wide else "f"


def read_body(db, b):
    m = {"dtype": b.get("B"), "has": b.get("B")}
    m["site"], m["words_shape"] = b.varint(), b.varint()
    for name in ("t_ns", "step", "iteration", "microbatch", "labels"):
        m[name] = b.varint()
    m["words_note"], m["n"] = b.varint(), b.varint()
    assert not m["has"] & GIVEN
    if m["has"] & HAS_COUNTS:
        mask = b.get("B")
        for i, name in enumerate(COUNTS):
            m[name] = b.varint() if mask >> i & 1 else 0
    form = form_of(db, m["dtype"])
    if m["has"] & HAS_RANGE:
        m["max"], m["min"] = b.get(form), b.get(form)
    if m["has"] & HAS_ABS:
        m["absmax"], m["absmin"] = b.get(form), b.get(form)
    if m["has"] & HAS_MEAN:
        m["mean"], m["std"] = b.get("d"), b.get("d")
    if m["has"] & HAS_L2:
        m["l2"] = b.get("d")
    if m["has"] & HAS_HASH:
        m["hash"] = b.get("q")
    if m["has"] & MORE:
        m["has"] -= MORE
        more = b.get("B")
        if more & 1:
            m["sampling"], m["sampling_arg"] = b.get("B"), b.varint()
        if more & 2:
            m["bins"] = [b.get("B"), b.varint()]
            m["bins"] += [b.varint() for _ in range(b.varint())]
    m["sample_n"] = b.varint()
    m["samples"] = b.data[b.at:]
    return m


def write_body(db, m):
    sampling, bins = m.get("sampling"), m.get("bins")
    has = m["has"] | (MORE if sampling or bins else 0)
    out = struct.pack("<BB", m["dtype"], has)
    for name in ("site", "words_shape", "t_ns", "step", "iteration",
                 "microbatch", "labels", "words_note", "n"):
        out += varint(m[name])
    if has & HAS_COUNTS:
        out += b"\x1f" + b"".join(varint(m[name]) for name in COUNTS)
    form = 2 * form_of(db, m["dtype"])
    if has & HAS_RANGE:
        out += struct.pack("<" + form, m["max"], m["min"])
    if has & HAS_ABS:
        out += struct.pack("<" + form, m["absmax"], m["absmin"])
    if has & HAS_MEAN:
        out += struct.pack("<dd", m["mean"], m["std"])
    if has & HAS_L2:
        out += struct.pack("<d", m["l2"])
    if has & HAS_HASH:
        out += struct.pack("<q", m["hash"])
    if has & MORE:
        out += struct.pack("<B", bool(sampling) + 2 * bool(bins))
    if sampling:
        out += struct.pack("<B", sampling)
        out += varint(m["sampling_arg"] % 2**64)
    if bins:
        out += struct.pack("<B", bins[0])
        out += b"".join(map(varint, (bins[1], len(bins) - 2, *bins[2:])))
    return out + varint(m["sample_n"]) + m["samples"]


def read(db, chunk):
    """A dict for each record of a row of the queue."""
    b = Bytes(chunk)
    while b.at < len(chunk):
        m = {name: b.varint() for name in HEAD}
        m["pass"], m["io"] = b.get("B"), b.get("B")
        word, crc, m["number"] = (b.get("I") for _ in range(3))
        assert word >> 24 == 1
        body = b.take((word & 0xFFFFFF) - 12)
        assert crc == crc32c(struct.pack("<I", word) + chunk[
            b.at - len(body) - 4:b.at
        ])
        yield m | read_body(db, Bytes(body))


def write(db, records):
    out = b""
    for m in records:
        body = write_body(db, m)
        word = struct.pack("<I", 1 << 24 | len(body) + 12)
        rest = struct.pack("<I", m["number"]) + body
        out += b"".join(varint(m[name]) for name in HEAD)
        out += struct.pack("<BB", m["pass"], m["io"])
        out += word + struct.pack("<I", crc32c(word + rest)) + rest
    return out


def change(db, what):
    """what(id, record) may change each."""
    rows = db.execute("SELECT id, n, records FROM queue").fetchall()
    for last, n, chunk in rows:
        records = list(read(db, chunk))
        assert len(records) == n
        for i, m in enumerate(records):
            what(last - n + 1 + i, m)
        db.execute(
            "UPDATE queue SET records = ? WHERE id = ?",
            (write(db, records), last),
        )


def column(m, name):
    """What table record or extra has of it; None: NULL."""
    value = m.get(name)
    if name == "sampling_arg" and value and value >= 2**63:
        return value - 2**64
    if name in ("note", "samples", "absmin"):
        return value or None
    return value


def stored_bins(m):
    """What table extra has of a histogram: counts of the same width."""
    if "bins" not in m:
        return None
    kind, first, *counts = m["bins"]
    width = next(w for w in (1, 2, 4, 8) if max(counts) < 1 << 8 * w)
    return struct.pack("<BBBH", kind, m["dtype"], width, first) + b"".join(
        count.to_bytes(width, "little") for count in counts
    )


def move(db):
    """The queue's records into the tables that have them without it."""
    names = [row[1] for row in db.execute("PRAGMA table_info(record)")]
    marks = ", ".join("?" * len(names))
    for chunk, in db.execute("SELECT records FROM queue").fetchall():
        for m in read(db, chunk):
            db.execute(
                f"INSERT INTO record VALUES ({marks})",
                [column(m, name) for name in names],
            )
            if m.get("sampling") or "bins" in m:
                db.execute(
                    "INSERT INTO extra VALUES (?, ?, ?, ?, ?)",
                    [
                        m["stream"], m["seq"], column(m, "sampling"),
                        column(m, "sampling_arg"), stored_bins(m),
                    ],
                )
