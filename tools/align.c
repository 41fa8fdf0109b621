/* Pairing the objects and paths of two runs by their names. */
#include "tools/align.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/rule_file.h"
#include "tools/tracectl.h"

enum { NAME_BYTES = ALIGN_NAME - 32 };

/* What holds for some ranks only: "pp=1". */
struct only {
    char *text;   /* all of it; NULL for every rank */
    int64_t at;
};

struct rule {
    struct only on_a, on_b;
    char *from, *to;
};

/* A path of b without wrappers. */
struct named {
    char *name;
    int64_t path;
};

struct align {
    const struct scan *a, *b;
    struct rule *rule;
    size_t rules;
    long *there, *back;
    size_t n, back_n;
    int64_t *path;      /* of a's paths by number, NO_PATH where not asked */
    size_t paths;
    struct named *named; /* b's, sorted; NULL until one is asked for */
    size_t named_n;
};

enum { NO_PATH = -2, ONLY_BYTES = 30 };

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

const char *align_class(const char *name)
{
    bool is_own = strncmp(name, "FSDP", 4) == 0 && name[4] >= 'A' &&
                  name[4] <= 'Z';
    return is_own ? name + 4 : name;
}

/* Is it said of that rank? NULL: of no rank in particular. */
static bool is_said_of(const struct only *o, const struct layout_rank *on)
{
    const struct scan_place *p;
    char name[NAME_BYTES];
    if (!o->text)
        return true;
    if (!on)
        return false;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(o->text, "="), o->text);
    if (strcmp(name, "rank") == 0)
        return on->rank == o->at;
    p = layout_place(on, name);
    return p ? p->at == o->at : strcmp(name, "pp") == 0 &&
                                    on->stage == o->at;
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
 * for it. The rule, or NULL. */
static const struct rule *translate(const struct align *m,
                                    const struct layout_rank *on,
                                    const char *name, char out[NAME_BYTES])
{
    struct slice part[STARS + 1];
    snprintf(out, NAME_BYTES, "%.*s", NAME_BYTES - 1, name);
    for (size_t i = 0; i < m->rules; i++) {
        size_t used = 0, star = 0;
        if (!is_said_of(&m->rule[i].on_a, on) ||
            !fits(m->rule[i].from, name, part, STARS))
            continue;
        for (const char *p = m->rule[i].to; *p; p++) {
            struct slice s = {p, 1};
            if (*p == '*')
                s = part[star++];
            if (used + s.n >= NAME_BYTES)
                return NULL;
            memcpy(out + used, s.text, s.n);
            used += s.n;
        }
        out[used] = '\0';
        return &m->rule[i];
    }
    return NULL;
}

bool align_is_by_rank(const struct align *m)
{
    for (size_t i = 0; i < m->rules; i++)
        if (m->rule[i].on_a.text || m->rule[i].on_b.text)
            return true;
    return false;
}

void align_name(const struct align *m, bool second,
                const struct layout_rank *on, const char *name,
                char out[ALIGN_NAME])
{
    struct slice part[STARS + 1];
    char other[NAME_BYTES];
    const char *only = NULL;
    const struct rule *r;
    if (!second) {
        r = translate(m, on, name, other);
        only = r ? r->on_b.text : NULL;
    } else {
        snprintf(other, sizeof other, "%.*s", NAME_BYTES - 1, name);
        for (size_t i = 0; i < m->rules && !only; i++)
            if (m->rule[i].on_b.text && is_said_of(&m->rule[i].on_b, on) &&
                fits(m->rule[i].to, name, part, STARS))
                only = m->rule[i].on_b.text;
    }
    snprintf(out, ALIGN_NAME, "%s%s%s", other, only ? "@" : "",
             only ? only : "");
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

/* Takes "pp=1" off the front of what a line says of a run. */
static int take_only(struct only *o, char **word, struct rule_line *line)
{
    char *at = *word ? strchr(*word, '=') : NULL, *end;
    if (!at)
        return 0;
    o->at = strtoll(at + 1, &end, 10);
    if (at == *word || end == at + 1 || *end || o->at < 0 ||
        o->at > UINT32_MAX || strlen(*word) > ONLY_BYTES)
        return bad_line(line, "expected DIMENSION=PLACE, such as pp=1 or "
                              "rank=0");
    o->text = *word;
    *word = rule_word(line);
    return 0;
}

static char *copy_of(const char *text)
{
    return text ? strdup(text) : NULL;
}

static int add_rule(void *to, char *from, struct rule_line *line)
{
    struct align *m = to;
    struct only on_a = {NULL, 0}, on_b = {NULL, 0};
    char *other;
    int code = take_only(&on_a, &from, line);
    other = from && !code ? rule_word(line) : NULL;
    if (!code)
        code = take_only(&on_b, &other, line);
    if (code)
        return code;
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
    struct rule rule = {{copy_of(on_a.text), on_a.at},
                        {copy_of(on_b.text), on_b.at},
                        strdup(from),
                        strdup(other)};
    m->rule[m->rules++] = rule; /* align_close() frees what there is */
    return rule.from && rule.to && !rule.on_a.text == !on_a.text &&
                   !rule.on_b.text == !on_b.text
               ? 0
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
    snprintf(name, sizeof name, "%.*s-%lld", TRD_MAX_NAME,
             align_class(o->class_name), (long long)o->instance);
    if (translated) {
        translate(m, NULL, path, other);
        memcpy(path, other, sizeof path);
        translate(m, NULL, name, other);
        memcpy(name, other, sizeof name);
    }
    switch (level) {
    case 0:
        snprintf(out, cap, "%s|%s", path, name);
        return true;
    case 1:
        snprintf(out, cap, "%s|%s", path, align_class(o->class_name));
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
        free(m->rule[i].on_a.text);
        free(m->rule[i].on_b.text);
        free(m->rule[i].from);
        free(m->rule[i].to);
    }
    free(m->rule);
    free(m->there);
    free(m->back);
    free(m->path);
    for (size_t i = 0; i < m->named_n; i++)
        free(m->named[i].name);
    free(m->named);
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

static int by_text(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    int d = strcmp(x->name, y->name);
    return d ? d : (x->path > y->path) - (x->path < y->path);
}

static bool name_paths(struct align *m)
{
    char plain[TRD_MAX_NAME + 1];
    const char *text;
    int64_t path;
    size_t n = 0;
    while (scan_path_at(m->b, n, &path))
        n++;
    m->named = malloc((n + 1) * sizeof *m->named);
    if (!m->named)
        return false;
    for (size_t i = 0; i < n; i++) {
        text = scan_path_at(m->b, i, &path);
        if (strlen(text) > TRD_MAX_NAME)
            continue;
        align_strip(text, plain);
        m->named[m->named_n].path = path;
        m->named[m->named_n].name = strdup(plain);
        if (!m->named[m->named_n].name)
            return false;
        m->named_n++;
    }
    qsort(m->named, m->named_n, sizeof *m->named, by_text);
    return true;
}

/* b's path that is called so but for wrappers; -1: none. */
static int64_t path_of_b(struct align *m, const char *name)
{
    size_t low = 0, high;
    if (!m->named && !name_paths(m))
        return -1;
    high = m->named_n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (strcmp(m->named[mid].name, name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low < m->named_n && strcmp(m->named[low].name, name) == 0
               ? m->named[low].path
               : -1;
}

static int64_t find_path(struct align *m, int64_t path)
{
    char plain[TRD_MAX_NAME + 1], other[NAME_BYTES];
    const char *text = scan_path(m->a, path);
    if (!text || strlen(text) > TRD_MAX_NAME)
        return -1;
    align_strip(text, plain);
    translate(m, NULL, plain, other);
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
