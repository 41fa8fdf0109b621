/* Pairing the objects and paths of two runs by their names. */
#include "tools/align.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/rule_file.h"
#include "tools/tracectl.h"

enum { NAME_BYTES = TRD_MAX_NAME + 32 };

struct rule {
    char *from, *to;
};

struct align {
    const struct scan *a, *b;
    struct rule *rule;
    size_t rules;
    long *there, *back;
    size_t n, back_n;
    int64_t *path;      /* of a's paths by number, NO_PATH where not asked */
    size_t paths;
};

enum { NO_PATH = -2 };

/* ---- names ---- */

static bool is_wrapper(const char *part, size_t n)
{
    static const char *const names[] = {
        "module", "_orig_mod", "_fsdp_wrapped_module",
        "_checkpoint_wrapped_module"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n && memcmp(part, names[i], n) == 0)
            return true;
    return false;
}

/* "module" is dropped at the front only: elsewhere it may be a name. */
void align_strip(const char *path, char *out)
{
    char *to = out;
    while (*path) {
        size_t n = strcspn(path, ".");
        bool front = to == out;
        if (!is_wrapper(path, n) || (*path == 'm' && !front)) {
            if (!front)
                *to++ = '.';
            memcpy(to, path, n);
            to += n;
        }
        path += n + (path[n] == '.');
    }
    *to = '\0';
}

/* Does the text fit a pattern with `*`? What each stands for goes to part,
 * at most `most` of them. */
static bool fits(const char *pattern, const char *text, struct slice *part,
                 size_t most)
{
    if (*pattern == '\0')
        return *text == '\0';
    if (*pattern != '*')
        return *pattern == *text && fits(pattern + 1, text + 1, part, most);
    if (most == 0)
        return false;
    for (size_t n = 0;; n++) {
        part->text = text;
        part->n = n;
        if (fits(pattern + 1, text + n, part + 1, most - 1))
            return true;
        if (text[n] == '\0')
            return false;
    }
}

enum { STARS = 4 };

/* The name by which b knows what a calls so; the name itself without a rule
 * for it. */
static void translate(const struct align *m, const char *name,
                      char out[NAME_BYTES])
{
    struct slice part[STARS + 1];
    snprintf(out, NAME_BYTES, "%.*s", NAME_BYTES - 1, name);
    for (size_t i = 0; i < m->rules; i++) {
        size_t used = 0, star = 0;
        if (!fits(m->rule[i].from, name, part, STARS))
            continue;
        for (const char *p = m->rule[i].to; *p; p++) {
            struct slice s = {p, 1};
            if (*p == '*')
                s = part[star++];
            if (used + s.n >= NAME_BYTES)
                return;
            memcpy(out + used, s.text, s.n);
            used += s.n;
        }
        out[used] = '\0';
        return;
    }
}

static size_t stars_in(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += *text == '*';
    return n;
}

/* ---- the map's file ---- */

static int bad_line(const struct rule_line *line, const char *why)
{
    return ctl_fail(CTL_BAD, "%s:%lu: %s", line->file, line->number, why);
}

static int add_rule(void *to, char *from, struct rule_line *line)
{
    struct align *m = to;
    char *other = rule_word(line);
    if (!other || rule_word(line))
        return bad_line(line, "expected two names, of the first and of the "
                              "second run");
    if (stars_in(from) > STARS || stars_in(other) > stars_in(from))
        return bad_line(line, "the second name may have as many '*' as the "
                              "first, and that at most 4");
    if (strlen(from) >= NAME_BYTES || strlen(other) >= NAME_BYTES)
        return bad_line(line, "a name is too long");
    if (m->rules == RULE_FILE_MAX)
        return bad_line(line, "there are more than 4096 lines");
    if (!m->rule)
        m->rule = calloc(RULE_FILE_MAX, sizeof *m->rule);
    if (!m->rule)
        return ctl_fail(CTL_FAILED, "out of memory");
    struct rule rule = {strdup(from), strdup(other)};
    m->rule[m->rules++] = rule; /* align_close() frees what there is */
    return rule.from && rule.to ? 0
                                : ctl_fail(CTL_FAILED, "out of memory");
}

/* ---- objects ---- */

struct entry {
    char name[NAME_BYTES + TRD_MAX_NAME];
    size_t index;
};

/* What an object is looked for by; false: it has no such key. */
static bool key_of(const struct align *m, const struct scan_object *o,
                   int level, bool translated, char *out, size_t cap)
{
    char path[NAME_BYTES], name[NAME_BYTES], other[NAME_BYTES];
    bool known = *o->module;
    align_strip(o->module, path);
    snprintf(name, sizeof name, "%.*s-%lld", TRD_MAX_NAME, o->class_name,
             (long long)o->instance);
    if (translated) {
        translate(m, path, other);
        memcpy(path, other, sizeof path);
        translate(m, name, other);
        memcpy(name, other, sizeof name);
    }
    switch (level) {
    case 0:
        snprintf(out, cap, "%s|%s", path, name);
        return true;
    case 1:
        snprintf(out, cap, "%s|%s", path, o->class_name);
        return true;
    case 2:
        snprintf(out, cap, "%s", path);
        return known;
    default:
        snprintf(out, cap, "%s", name);
        return true;
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name,
                  ((const struct entry *)b)->name);
}

/* Objects without a path meet by their names only where the other has none
 * either, or where that run has no paths at all. */
static bool has_paths(const struct scan_object *o, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (*o[i].module)
            return true;
    return false;
}

static void pair(struct align *m, size_t i, size_t j)
{
    if (m->there[i] >= 0 || m->back[j] >= 0)
        return;
    m->there[i] = (long)j;
    m->back[j] = (long)i;
}

/* One round over all that is not paired yet; a key that is there twice pairs
 * nothing. */
static int pair_by(struct align *m, int level)
{
    const struct scan_object *a = scan_objects(m->a, &m->n);
    const struct scan_object *b = scan_objects(m->b, &m->back_n);
    struct entry *list = malloc((m->back_n + 1) * sizeof *list);
    struct entry key;
    size_t n = 0;
    if (!list)
        return ctl_fail(CTL_FAILED, "out of memory");
    for (size_t j = 0; j < m->back_n; j++)
        if (m->back[j] < 0 && key_of(m, &b[j], level, false, list[n].name,
                                     sizeof list[n].name))
            list[n++].index = j;
    qsort(list, n, sizeof *list, by_name);
    for (size_t i = 0; i < m->n; i++) {
        struct entry *found;
        if (m->there[i] >= 0 ||
            !key_of(m, &a[i], level, true, key.name, sizeof key.name))
            continue;
        found = bsearch(&key, list, n, sizeof *list, by_name);
        if (found && !(found > list && !by_name(found, found - 1)) &&
            !(found + 1 < list + n && !by_name(found, found + 1)))
            pair(m, i, found->index);
    }
    free(list);
    return 0;
}

static int pair_objects(struct align *m)
{
    const struct scan_object *a = scan_objects(m->a, &m->n);
    const struct scan_object *b = scan_objects(m->b, &m->back_n);
    int levels = has_paths(a, m->n) && has_paths(b, m->back_n) ? 3 : 4;
    int code = 0;
    m->there = malloc((m->n + 1) * sizeof *m->there);
    m->back = malloc((m->back_n + 1) * sizeof *m->back);
    if (!m->there || !m->back)
        return ctl_fail(CTL_FAILED, "out of memory");
    for (size_t i = 0; i < m->n; i++)
        m->there[i] = -1;
    for (size_t i = 0; i < m->back_n; i++)
        m->back[i] = -1;
    for (int level = 0; level < levels && code == 0; level++)
        code = pair_by(m, level);
    return code;
}

int align_open(const struct scan *a, const struct scan *b, const char *map,
               struct align **out)
{
    struct align *m = calloc(1, sizeof *m);
    int code;
    *out = NULL;
    if (!m)
        return ctl_fail(CTL_FAILED, "out of memory");
    m->a = a;
    m->b = b;
    code = map ? rule_file_read(map, add_rule, m) : 0;
    if (code == 0)
        code = pair_objects(m);
    if (code) {
        align_close(m);
        return code;
    }
    *out = m;
    return 0;
}

void align_close(struct align *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->rules; i++) {
        free(m->rule[i].from);
        free(m->rule[i].to);
    }
    free(m->rule);
    free(m->there);
    free(m->back);
    free(m->path);
    free(m);
}

long align_object(const struct align *m, size_t i)
{
    return i < m->n ? m->there[i] : -1;
}

long align_back(const struct align *m, size_t i)
{
    return i < m->back_n ? m->back[i] : -1;
}

/* ---- paths ---- */

/* b's path that is called so but for wrappers; -1: none. */
static int64_t path_of_b(const struct align *m, const char *name)
{
    char plain[TRD_MAX_NAME + 1];
    const char *text;
    int64_t path;
    for (size_t i = 0; (text = scan_path_at(m->b, i, &path)); i++) {
        if (strlen(text) > TRD_MAX_NAME)
            continue;
        align_strip(text, plain);
        if (strcmp(plain, name) == 0)
            return path;
    }
    return -1;
}

static int64_t find_path(const struct align *m, int64_t path)
{
    char plain[TRD_MAX_NAME + 1], other[NAME_BYTES];
    const char *text = scan_path(m->a, path);
    if (!text || strlen(text) > TRD_MAX_NAME)
        return -1;
    align_strip(text, plain);
    translate(m, plain, other);
    return path_of_b(m, other);
}

int64_t align_path(struct align *m, int64_t path)
{
    if (path < 0 || path > INT32_MAX)
        return -1;
    while ((size_t)path >= m->paths) {
        size_t room = m->paths ? 2 * m->paths : 256;
        int64_t *more = realloc(m->path, room * sizeof *more);
        if (!more)
            return -1;
        for (size_t i = m->paths; i < room; i++)
            more[i] = NO_PATH;
        m->path = more;
        m->paths = room;
    }
    if (m->path[path] == NO_PATH)
        m->path[path] = find_path(m, path);
    return m->path[path];
}
