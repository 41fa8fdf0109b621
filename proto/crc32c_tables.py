"""Writes the tables of CRC-32C: crc32c_tables.py OUTPUT."""
import sys

POLYNOMIAL = 0x82F63B78

first = []
for i in range(256):
    c = i
    for _ in range(8):
        c = c >> 1 ^ (POLYNOMIAL if c & 1 else 0)
    first.append(c)
tables = [first]
for _ in range(7):
    tables.append([c >> 8 ^ first[c & 0xFF] for c in tables[-1]])
with open(sys.argv[1], "w", encoding="utf-8") as f:
    f.write("/* Made by crc32c_tables.py. */\n")
    f.write("static const uint32_t crc32c_table[8][256] = {\n")
    for table in tables:
        f.write("    {" + ",".join("0x%08xu" % c for c in table) + "},\n")
    f.write("};\n")
