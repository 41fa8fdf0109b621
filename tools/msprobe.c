/* Cutting a dump.json of msprobe into entries. */
#include "tools/msprobe.h"

#include <stdio.h>

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void count_lines(struct msprobe *m)
{
    for (const char *p = m->line_from; p < m->at; p++)
        m->line += *p == '\n';
    m->line_from = m->at;
}

static int broken(struct msprobe *m, const char *why)
{
    count_lines(m);
    m->ended = 1;
    snprintf(m->why, sizeof m->why, "%s",
             m->at < m->end ? why : "the file ends within the dump");
    return -1;
}

static void skip_space(struct msprobe *m)
{
    while (m->at < m->end && is_space(*m->at))
        m->at++;
}

/* Steps over the character, if it is the next one. */
static bool step(struct msprobe *m, char c)
{
    skip_space(m);
    if (m->at == m->end || *m->at != c)
        return false;
    m->at++;
    return true;
}

/* Behind a string's closing quote; false: it has none. */
static bool skip_string(struct msprobe *m)
{
    for (m->at++; m->at < m->end; m->at++) {
        if (*m->at == '"') {
            m->at++;
            return true;
        }
        if (*m->at == '\\' && m->end - m->at > 1)
            m->at++;
    }
    return false;
}

/* Behind the next value, of which only brackets and quotes are looked at. */
static int skip_value(struct msprobe *m, struct slice *out)
{
    unsigned depth = 0;
    const char *from;
    skip_space(m);
    from = m->at;
    while (m->at < m->end) {
        char c = *m->at;
        if (depth == 0 && m->at > from &&
            (c == ',' || c == '}' || c == ']' || is_space(c)))
            break;
        if (c == '"') {
            if (!skip_string(m))
                break;
        } else {
            depth += c == '{' || c == '[';
            if (depth && (c == '}' || c == ']'))
                depth--;
            else if (c == '}' || c == ']')
                return broken(m, "a value is missing");
            m->at++;
        }
        if (depth == 0 && (c == '"' || c == '}' || c == ']'))
            break;
    }
    *out = (struct slice){from, (size_t)(m->at - from)};
    if (out->n == 0)
        return broken(m, "a value is missing");
    return depth ? broken(m, "a bracket is not closed") : 0;
}

/* A key and its colon. */
static int get_key(struct msprobe *m, struct slice *key)
{
    const char *from;
    skip_space(m);
    from = m->at;
    if (m->at == m->end || *m->at != '"')
        return broken(m, "a key in double quotes is missing");
    if (!skip_string(m))
        return broken(m, "a quote is not closed");
    *key = (struct slice){from + 1, (size_t)(m->at - from) - 2};
    count_lines(m);
    return step(m, ':') ? 0 : broken(m, "a colon is missing");
}

static bool is_word(struct slice s, const char *word)
{
    return s.n == strlen(word) && memcmp(s.text, word, s.n) == 0;
}

/* What is behind the entries: other members, and nothing behind the dump. */
static void finish(struct msprobe *m)
{
    struct slice key, value;
    m->ended = 1;
    while (step(m, ',')) {
        if (get_key(m, &key))
            return;
        if (is_word(key, "data")) {
            broken(m, "\"data\" is there twice: the first counts");
            return;
        }
        if (skip_value(m, &value))
            return;
    }
    if (!step(m, '}')) {
        broken(m, "',' or '}' is missing");
        return;
    }
    skip_space(m);
    if (m->at < m->end)
        broken(m, "there is more behind the dump");
}

int msprobe_open(struct msprobe *m, const char *bytes, size_t n)
{
    static const char mark[] = "\xef\xbb\xbf";
    struct slice key, value;
    *m = (struct msprobe){.at = bytes, .end = bytes + n, .line_from = bytes,
                          .line = 1};
    if (n >= 3 && memcmp(bytes, mark, 3) == 0)
        m->at += 3;
    if (!step(m, '{'))
        return broken(m, "a dump begins with '{'");
    while (!step(m, '}')) {
        if (get_key(m, &key))
            return -1;
        if (is_word(key, "data") && step(m, '{')) {
            if (step(m, '}'))
                finish(m);
            return 0;
        }
        if (skip_value(m, &value))
            return -1;
        if (!step(m, ',') && (m->at == m->end || *m->at != '}'))
            return broken(m, "',' or '}' is missing");
    }
    count_lines(m);
    m->ended = 1;
    snprintf(m->why, sizeof m->why,
             "this is no dump of msprobe: it has no object \"data\"");
    return -1;
}

/* ---- names ---- */

/* Cuts off what is behind the last dot; false: there is none. */
static bool cut(struct slice *s, struct slice *last)
{
    size_t i = s->n;
    while (i > 0 && s->text[i - 1] != '.')
        i--;
    if (i < 2)
        return false;
    *last = (struct slice){s->text + i, s->n - i};
    s->n = i - 1;
    return last->n > 0;
}

static bool number_of(struct slice s, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.text[i] < '0' || s.text[i] > '9')
            return false;
        *out = *out * 10 + (uint64_t)(s.text[i] - '0');
    }
    return s.n > 0 && s.n < 10;
}

static int pass_of(struct slice s)
{
    return is_word(s, "forward")           ? TRD_FORWARD
           : is_word(s, "backward")        ? TRD_BACKWARD
           : is_word(s, "parameters_grad") ? TRD_GRAD
                                           : 0;
}

static bool cut_prefix(struct slice *s, const char *prefix)
{
    size_t n = strlen(prefix);
    if (s->n <= n || memcmp(s->text, prefix, n) != 0)
        return false;
    s->text += n;
    s->n -= n;
    return true;
}

bool msprobe_is_utf8(struct slice s)
{
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    for (size_t i = 0; i < s.n;) {
        unsigned char c = (unsigned char)s.text[i++];
        int more = c < 0x80 ? 0 : c < 0xc0 ? -1 : c < 0xe0 ? 1
                   : c < 0xf0 ? 2 : c < 0xf8 ? 3 : -1;
        uint32_t code = more > 0 ? c & (0x3fu >> more) : c;
        if (more < 0 || s.n - i < (size_t)more)
            return false;
        for (int k = 0; k < more; k++, i++) {
            if (((unsigned char)s.text[i] & 0xc0) != 0x80)
                return false;
            code = code << 6 | ((unsigned char)s.text[i] & 0x3f);
        }
        if (code < least[more] || code > 0x10ffff ||
            (code >= 0xd800 && code < 0xe000))
            return false;
    }
    return true;
}

/* Module.PATH.CLASS.PASS.CALL, Cell... of MindSpore; FUNCTION.CALL.PASS. */
static bool read_name(struct slice key, struct msprobe_name *out)
{
    struct slice s = key, last, before;
    *out = (struct msprobe_name){.pass = 0};
    if (s.n > TRD_MAX_NAME || memchr(s.text, '\\', s.n) ||
        memchr(s.text, '\0', s.n) || !msprobe_is_utf8(s))
        return false;
    if (!cut(&s, &last) || !cut(&s, &before))
        return false;
    out->pass = pass_of(before);
    if (!out->pass) {
        out->pass = pass_of(last);
        out->class_name = out->module = s;
        return out->pass && out->pass != TRD_GRAD &&
               number_of(before, &out->call);
    }
    if (!number_of(last, &out->call) ||
        !(cut_prefix(&s, "Module.") || cut_prefix(&s, "Cell.")))
        return false;
    out->module = s;
    if (!cut(&out->module, &out->class_name)) {
        out->class_name = s; /* the root */
        out->module.n = 0;
    }
    if (is_word(out->module, "module")) {
        out->module.n = 0;
        out->wrapped = true;
    }
    while (cut_prefix(&out->module, "module."))
        out->wrapped = true;
    return true;
}

int msprobe_next(struct msprobe *m, struct msprobe_entry *e, bool *named)
{
    if (m->ended)
        return m->why[0] ? -1 : 0;
    if (get_key(m, &e->key))
        return -1;
    e->line = m->line;
    if (skip_value(m, &e->value))
        return -1;
    *named = read_name(e->key, &e->name);
    if (step(m, '}')) {
        finish(m); /* what is wrong there is told by the next call */
    } else if (!step(m, ',')) {
        broken(m, "',' or '}' is missing"); /* told by the next call */
    }
    return 1;
}
