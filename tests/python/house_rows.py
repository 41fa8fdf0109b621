"""Rows of a ClickHouse, of a release of today's or of 18.16, as Python has
them."""

import re

from programs import TOP

FORMAT = "TabSeparatedWithNamesAndTypes"
ESCAPES = {"b": "\b", "f": "\f", "r": "\r", "n": "\n", "t": "\t", "0": "\0"}


def statements(name):
    """Those of proto/clickhouse/name.sql, one by one."""
    text = (TOP / f"proto/clickhouse/{name}.sql").read_text()
    lines = [s for s in text.splitlines() if not s.startswith("--")]
    text = "\n".join(lines).replace("$", "")
    return [s for s in text.split(";") if s.strip()]


def value(text, kind):
    if text == "\\N":
        return None
    if "Float" in kind:
        return float(text)
    if "Int" in kind:
        return int(text)
    return re.sub(
        r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), text
    )


def rows(text):
    """Of an answer in FORMAT."""
    _, kinds, *lines = text.split("\n")[:-1]
    kinds = kinds.split("\t")
    return [
        tuple(map(value, line.split("\t"), kinds)) for line in lines
    ]
