"""Writes the page's fixed parts as C strings.

    embed.py OUTPUT PAGE STYLE SCRIPT...

The page says by their hashes which style and script may run: nothing else
can, whatever stands in a run.
"""

import base64
import hashlib
import sys

output, page, style, *scripts = sys.argv[1:]


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def hashed(text):
    digest = hashlib.sha256(text.encode()).digest()
    return "'sha256-%s'" % base64.b64encode(digest).decode()


style = read(style)
script = "".join(['"use strict";\n'] + [read(s) for s in scripts])
assert "</script" not in script and "</style" not in style
policy = (
    "default-src 'none'; base-uri 'none'; form-action 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none';"
    f" style-src {hashed(style)}; script-src {hashed(script)}"
)
head, tail = read(page).split("{data}")
parts = [
    ("report_page_head", head.replace("{policy}", policy, 1)),
    ("report_page_tail", tail),
]
with open(output, "w", encoding="utf-8") as f:
    f.write("/* Made from tools/report. */\n")
    for name, text in parts:
        text = text.replace("{style}", style, 1).replace("{script}", script, 1)
        f.write("static const char %s[] =\n" % name)
        for line in text.splitlines(keepends=True):
            line = line.replace("\\", "\\\\").replace('"', '\\"')
            line = line.replace("?", "\\?").replace("\n", "\\n")
            f.write('    "%s"\n' % line)
        f.write("    ;\n")
