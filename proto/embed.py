"""Writes a text file as a C string: embed.py INPUT OUTPUT NAME."""
import sys

source, target, name = sys.argv[1:]
with open(source, encoding="utf-8") as f:
    lines = f.read().splitlines()
with open(target, "w", encoding="utf-8") as f:
    f.write("/* Made from %s. */\n" % source.rsplit("/", 1)[-1])
    f.write("static const char %s[] =\n" % name)
    for line in lines:
        text = line.replace("\\", "\\\\").replace('"', '\\"')
        f.write('    "%s\\n"\n' % text)
    f.write("    ;\n")
