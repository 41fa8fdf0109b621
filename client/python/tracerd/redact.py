"""Takes out of texts what looks like a secret, before they are stored.

Names are read by words: `HF_TOKEN` and `--apiKey` are secret, `tokenizer`
and `--author` are not. Rather too much is taken out than too little.
"""

import re

STARS = "***"

# whole words of a name
_WORDS = frozenset(
    (
        "token", "tokens", "key", "keys", "pass", "passwd", "password",
        "passwords", "pwd", "passphrase", "passcode", "secret", "secrets",
        "auth", "oauth", "oauth2", "authorization", "bearer", "cred", "creds",
        "credential", "credentials", "cookie", "cookies", "sig", "signature",
        "sas", "jwt", "pat", "dsn",
    )
)
# what a word made of several may have in it, and at its end
_PARTS = ("secret", "passw", "passphrase", "credential", "apikey")
_ENDS = ("token", "tokens", "key", "keys", "auth", "pwd")
# words of names whose value is a number of things or a place among them
_COUNTS = frozenset(("tokens", "keys"))
# whose value may be a long hexadecimal number without being a secret
_DIGESTS = frozenset(
    (
        "commit", "sha", "sha1", "sha256", "md5", "hash", "digest", "checksum",
        "revision", "rev", "ref", "git", "version", "id", "uuid",
    )
)

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NUMBER = re.compile(r"[-+]?\d{1,9}(\.\d*)?([eE][-+]?\d+)?\Z")
_SWITCH = re.compile(r"(?i)(true|false|yes|no|on|off|none|null)?\Z")

# NAME=VALUE, NAME: VALUE and "NAME": "VALUE" within a text
_NAME = re.compile(r"""([\w.\-\[\]]*\w)["']?\s*[:=](?!//)\s*""")
_VALUE = re.compile(
    r"""(?P<quote>["'])(?P<in>.*?)(?P=quote)|["']?[^\s"',;&|{}()\[\]]+""",
    re.DOTALL,
)
_SHAPES = re.compile(
    "|".join(
        (
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?"
            r"(-----END [A-Z0-9 ]*-----|\Z)",
            r"(?i:(?<=\bbearer )|(?<=\bbasic ))[\w.~+/=-]{6,}",
            r"\bA(3T|KIA|SIA|GPA|IDA|ROA|NPA|BIA|CCA)[0-9A-Z]{13,17}\b",
            r"\bgh[opusr]_\w{16,}",
            r"\bgithub_pat_\w{16,}",
            r"\bgl(pat|cbt|dt|ft|oas|ptt|rt|soat)-[\w.-]{16,}",
            r"\b(hf|api_org)_[A-Za-z0-9]{16,}",
            r"\bsk-[\w-]{16,}",
            r"\b(nvapi|xai|gsk|pplx|r8|lsv2|tvly)[-_][\w-]{16,}",
            r"\bxox[a-z]-[\w-]{8,}",
            r"\bxapp-[\w-]{8,}",
            r"hooks\.slack\.com/services/[\w/]+",
            r"\bAIza[\w-]{30,}",
            r"\bya29\.[\w-]{10,}",
            r"\bGOCSPX-[\w-]{10,}",
            r"\b[rsp]k_(live|test)_\w{8,}",
            r"\bwhsec_\w{8,}",
            r"\beyJ[\w-]{6,}\.[\w-]{4,}\.[\w-]*",
            r"\bnpm_\w{16,}",
            r"\bpypi-[\w-]{16,}",
            r"\bdckr_pat_[\w-]{8,}",
            r"\bdo[opr]_v1_[0-9a-f]{16,}",
            r"\bSG\.[\w-]{8,}\.[\w-]{8,}",
            r"\bdapi[0-9a-f]{32}\b",
            r"\blocal-[0-9a-f]{40}\b",
            r"\b(age|AGE)-(secret|SECRET)-(key|KEY)-\w+",
        )
    ),
    re.DOTALL,
)
_USER = re.compile(r"""(://)([^\s"'/?#]*|[^\s"'/@:]+:[^\s"']*)@""")
_HEX = re.compile(r"[0-9a-fA-F]{32}([0-9a-fA-F]{8}|[0-9a-fA-F]{32})?\Z")
_BASE64 = re.compile(
    r"(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[A-Za-z0-9+][A-Za-z0-9+/]{38}"
    r"[A-Za-z0-9+/=]\Z"
)


def words_of(name):
    return [w.lower() for w in re.split(r"[\W_]+", _CAMEL.sub("_", name)) if w]


def _is_secret(word):
    return (
        word in _WORDS
        or word.endswith(_ENDS)
        or any(part in word for part in _PARTS)
    )


def is_secret_name(name):
    """Whether the name says that its value is a secret."""
    return any(_is_secret(w) for w in words_of(name))


def _is_harmless(name, value):
    """Numbers and switches of names such as pad_token_id, num_keys and
    use_auth_token are no secrets."""
    if _SWITCH.match(value):
        return True
    last = words_of(name)[-1:]
    counts = not last or last[0] in _COUNTS or not _is_secret(last[0])
    return counts and _NUMBER.match(value) is not None


def value(name, text):
    """The text of a value with that name, without secrets in it."""
    if is_secret_name(name) and not _is_harmless(name, text):
        return STARS
    if _HEX.match(text) and not _DIGESTS & set(words_of(name)):
        return STARS
    if _BASE64.match(text):
        return STARS
    return scrub(text)


def scrub(text):
    """Any text without the secrets that can be told within it."""
    text = _SHAPES.sub(STARS, text)
    text = _USER.sub(rf"\1{STARS}@", text)
    return _pairs(text)


def _pairs(text):
    kept, done, at = [], 0, 0
    while name := _NAME.search(text, at):
        at = name.end()  # a value may itself be a pair
        found = _VALUE.match(text, at)
        if found is None or not is_secret_name(name[1]):
            continue
        quote = found["quote"] or ""
        if not _is_harmless(name[1], found["in"] if quote else found[0]):
            kept += text[done:at], quote, STARS, quote
            done = at = found.end()
    return "".join(kept) + text[done:]


def command_line(arguments):
    """Arguments of a command without secrets: --name VALUE, --name=VALUE,
    name=VALUE and whatever else looks like one."""
    kept, name, first = [], "", False
    for argument in arguments:
        flag, given, text = argument.partition("=")
        # what follows --token may begin with a dash and be a secret
        told = first and is_secret_name(name) and argument[:2] != "--"
        first = False
        if argument[:1] == "-" and not told and not _NUMBER.match(argument):
            name, first = ("", False) if given else (argument, True)
            if given:
                kept.append(f"{scrub(flag)}={value(flag, text)}")
            else:
                kept.append(scrub(argument))
        elif given and not name and re.match(r"[\w.+~@/-]+\Z", flag):
            kept.append(f"{scrub(flag)}={value(flag, text)}")
        else:
            kept.append(value(name, argument))
    return kept


def values(thing, name="", depth=0):
    """The same for what JSON can hold; names are those of dictionaries."""
    if depth > 32:
        return STARS
    if isinstance(thing, str):
        return value(name, thing)
    if isinstance(thing, dict):
        return {
            str(k): values(v, str(k), depth + 1) for k, v in thing.items()
        }
    if isinstance(thing, (list, tuple)):
        return [values(v, name, depth + 1) for v in thing]
    if thing is None or isinstance(thing, (bool, int, float)):
        harmless = thing is None or _is_harmless(name, str(thing))
        return thing if harmless or not is_secret_name(name) else STARS
    return value(name, str(thing))
