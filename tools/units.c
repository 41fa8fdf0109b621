/* Names that two runs have in common. */
#include "tools/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tracectl.h"

/* ---- numbers that are counted anew ---- */

/* What is numbered: "decoder.layers", of whatever is before it. */
struct series {
    char *name;        /* numbers in it are "*" */
    bool experts;      /* anew on each rank of the expert-parallel group, else
                          in each stage */
    uint32_t *count;   /* of each stage or place */
    uint32_t *least;   /* smallest number there */
    bool anew;         /* all begin with 0 */
};

struct side {
    struct units_side in;
    size_t objects, ranks, places;
    struct series *series;
    size_t series_n;
    bool by_rank;      /* names depend on the rank */
    uint32_t *unit;    /* of [object][rank], or of [object] */
    size_t *object;    /* of all units, one after the other */
    size_t *begin;     /* of each unit in it, and the end */
    int64_t **path;    /* of [rank][path] */
    size_t paths;
};

/* Names and their numbers. */
struct table {
    char **name;
    int64_t *number;
    size_t n, room;
};

struct units {
    struct side side[2];
    const struct align *names;
    struct table units, paths;
};

static int no_memory(void)
{
    return ctl_fail(CTL_FAILED, "out of memory");
}

/* ---- a table of names ---- */

static size_t slot_of(const struct table *t, const char *name)
{
    uint64_t h = UINT64_C(14695981039346656037);
    size_t at;
    for (const char *p = name; *p; p++)
        h = (h ^ (unsigned char)*p) * UINT64_C(1099511628211);
    at = (size_t)(h ^ h >> 32) & (t->room - 1);
    while (t->name[at] && strcmp(t->name[at], name) != 0)
        at = (at + 1) & (t->room - 1);
    return at;
}

static bool grow(struct table *t)
{
    struct table more = {.n = t->n, .room = t->room ? 2 * t->room : 256};
    more.name = calloc(more.room, sizeof *more.name);
    more.number = malloc(more.room * sizeof *more.number);
    if (!more.name || !more.number) {
        free(more.name);
        free(more.number);
        return false;
    }
    for (size_t i = 0; i < t->room; i++)
        if (t->name[i]) {
            size_t at = slot_of(&more, t->name[i]);
            more.name[at] = t->name[i];
            more.number[at] = t->number[i];
        }
    free(t->name);
    free(t->number);
    *t = more;
    return true;
}

/* The number of a name, which gets the next one if it is new; -1 without
 * memory. */
static int64_t number_of(struct table *t, const char *name)
{
    size_t at;
    if (t->n >= t->room / 2 && !grow(t))
        return -1;
    at = slot_of(t, name);
    if (!t->name[at]) {
        t->name[at] = strdup(name);
        if (!t->name[at])
            return -1;
        t->number[at] = (int64_t)t->n++;
    }
    return t->number[at];
}

static void table_free(struct table *t)
{
    for (size_t i = 0; i < t->room; i++)
        free(t->name[i]);
    free(t->name);
    free(t->number);
}

/* ---- series ---- */

static bool is_number(const char *part, size_t n, uint32_t *value)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        if (part[i] < '0' || part[i] > '9' || n > 6)
            return false;
        v = 10 * v + (uint64_t)(part[i] - '0');
    }
    *value = (uint32_t)v;
    return n > 0;
}

/* Place of a rank in what counts anew. */
static uint32_t place_of(const struct layout_rank *r, bool experts)
{
    const struct scan_place *p;
    if (!experts)
        return r->guessed ? 0 : r->stage;
    p = layout_place(r, "ep");
    return p && p->at >= 0 && p->at < UINT16_MAX ? (uint32_t)p->at : 0;
}

static struct series *series_of(const struct side *s, const char *name,
                                bool experts)
{
    for (size_t i = 0; i < s->series_n; i++)
        if (s->series[i].experts == experts &&
            strcmp(s->series[i].name, name) == 0)
            return &s->series[i];
    return NULL;
}

static struct series *add_series(struct side *s, const char *name,
                                 bool experts)
{
    struct series *list = s->series_n & (s->series_n - 1)
                              ? s->series
                              : realloc(s->series, (2 * s->series_n + 1) *
                                                       sizeof *list);
    struct series new = {.experts = experts};
    if (!list)
        return NULL;
    s->series = list;
    new.name = strdup(name);
    new.count = calloc(s->places, sizeof *new.count);
    new.least = malloc(s->places * sizeof *new.least);
    list[s->series_n++] = new; /* side_free() frees what there is */
    if (!new.name || !new.count || !new.least)
        return NULL;
    memset(new.least, 0xff, s->places * sizeof *new.least);
    return &list[s->series_n - 1];
}

/* One part of a path after the other: what is before it as a series has it,
 * and whether it is a number that may be counted anew. */
struct parts {
    const char *path;
    char before[ALIGN_NAME];
    bool numbered, experts;  /* of what came so far */
};

static bool is_counted(struct parts *p, const char *part, size_t n,
                       uint32_t *number, bool *experts)
{
    const char *last = strrchr(p->before, '.');
    bool counted;
    last = last ? last + 1 : p->before;
    *experts = strstr(last, "expert") != NULL;
    counted = is_number(part, n, number) && (*experts || !p->numbered);
    return counted;
}

static void go_on(struct parts *p, const char *part, size_t n)
{
    size_t used = strlen(p->before);
    uint32_t number;
    bool numeric = is_number(part, n, &number);
    snprintf(p->before + used, sizeof p->before - used, "%s%.*s",
             used ? "." : "", numeric ? 1 : (int)n, numeric ? "*" : part);
    p->numbered = p->numbered || numeric;
}

static int learn(struct side *s, const char *path,
                 const struct layout_rank *r)
{
    struct parts p = {.before = ""};
    for (size_t n; *path; path += n + (path[n] == '.')) {
        uint32_t number;
        bool experts;
        n = strcspn(path, ".");
        if (is_counted(&p, path, n, &number, &experts)) {
            uint32_t at = place_of(r, experts);
            struct series *x = series_of(s, p.before, experts);
            if (!x)
                x = add_series(s, p.before, experts);
            if (!x)
                return no_memory();
            if (number >= x->count[at])
                x->count[at] = number + 1;
            if (number < x->least[at])
                x->least[at] = number;
        }
        go_on(&p, path, n);
    }
    return 0;
}

static int learn_all(struct side *s)
{
    size_t n;
    const struct scan_object *o = scan_objects(s->in.scan, &n);
    int code = 0;
    for (size_t i = 0; i < n && !code; i++)
        for (size_t r = 0; r < s->ranks && !code; r++) {
            char path[TRD_MAX_NAME + 1];
            if (!s->in.owned[i * s->ranks + r] ||
                strlen(o[i].module) > TRD_MAX_NAME)
                continue;
            align_strip(o[i].module, path);
            code = learn(s, path, &s->in.layout->rank[r]);
        }
    for (size_t i = 0; i < s->series_n && !code; i++) {
        struct series *x = &s->series[i];
        size_t have = 0, zeros = 0;
        for (size_t p = 0; p < s->places; p++) {
            have += x->count[p] > 0;
            zeros += x->least[p] == 0;
        }
        x->anew = have > 1 && zeros == have;
        s->by_rank = s->by_rank || x->anew;
    }
    return code;
}

/* The path with the numbers of the whole model. */
static void renumber(const struct side *s, const char *path,
                     const struct layout_rank *r, char out[ALIGN_NAME])
{
    struct parts p = {.before = ""};
    size_t used = 0;
    out[0] = '\0';
    for (size_t n; *path; path += n + (path[n] == '.')) {
        const struct series *x = NULL;
        uint32_t number, at;
        bool experts;
        n = strcspn(path, ".");
        if (is_counted(&p, path, n, &number, &experts))
            x = series_of(s, p.before, experts);
        if (used + n + 12 >= ALIGN_NAME)
            return;
        if (used)
            out[used++] = '.';
        if (x && x->anew) {
            at = place_of(r, experts);
            for (uint32_t i = 0; i < at; i++)
                number += x->count[i];
            used += (size_t)snprintf(out + used, ALIGN_NAME - used, "%u",
                                     number);
        } else {
            memcpy(out + used, path, n);
            used += n;
            out[used] = '\0';
        }
        go_on(&p, path, n);
    }
}

/* ---- units ---- */

static bool has_paths(const struct side *s)
{
    size_t n;
    const struct scan_object *o = scan_objects(s->in.scan, &n);
    for (size_t i = 0; i < n; i++)
        if (*o[i].module)
            return true;
    return false;
}

/* What an object is called in both runs. */
static void unit_name(const struct units *u, bool second, size_t object,
                      const struct layout_rank *on, bool paths,
                      char out[ALIGN_NAME])
{
    const struct side *s = &u->side[second];
    size_t n;
    const struct scan_object *o = &scan_objects(s->in.scan, &n)[object];
    char name[ALIGN_NAME], plain[TRD_MAX_NAME + 1];
    if (paths && *o->module && strlen(o->module) <= TRD_MAX_NAME) {
        align_strip(o->module, plain);
        if (*plain) {
            renumber(s, plain, on, name);
            align_name(u->names, second, on, name, out);
            return;
        }
    }
    snprintf(name, sizeof name, "%.*s-%lld", TRD_MAX_NAME,
             align_class(o->class_name), (long long)o->instance);
    align_name(u->names, second, on, name, out);
}

static size_t cell(const struct side *s, size_t object, size_t rank)
{
    return s->by_rank ? object * s->ranks + rank : object;
}

static int name_objects(struct units *u, bool second, bool paths)
{
    struct side *s = &u->side[second];
    size_t cells = s->objects * (s->by_rank ? s->ranks : 1);
    char name[ALIGN_NAME];
    s->unit = malloc((cells + 1) * sizeof *s->unit);
    if (!s->unit)
        return no_memory();
    memset(s->unit, 0xff, (cells + 1) * sizeof *s->unit);
    for (size_t i = 0; i < s->objects; i++)
        for (size_t r = 0; r < s->ranks; r++) {
            int64_t unit;
            if (!s->in.owned[i * s->ranks + r] ||
                s->unit[cell(s, i, r)] != UINT32_MAX)
                continue;
            unit_name(u, second, i, &s->in.layout->rank[r], paths, name);
            unit = number_of(&u->units, name);
            if (unit < 0)
                return no_memory();
            s->unit[cell(s, i, r)] = (uint32_t)unit;
        }
    return 0;
}

/* Is the object not in the unit already, by a lower rank? */
static bool is_new(const struct side *s, size_t object, size_t rank)
{
    uint32_t unit = s->unit[cell(s, object, rank)];
    if (unit == UINT32_MAX || !s->by_rank)
        return unit != UINT32_MAX && rank == 0;
    for (size_t r = 0; r < rank; r++)
        if (s->unit[cell(s, object, r)] == unit)
            return false;
    return true;
}

static int list_objects(struct units *u, bool second)
{
    struct side *s = &u->side[second];
    size_t n = u->units.n, all = 0;
    s->begin = calloc(n + 2, sizeof *s->begin);
    if (!s->begin)
        return no_memory();
    for (size_t i = 0; i < s->objects; i++)
        for (size_t r = 0; r < s->ranks; r++)
            if (is_new(s, i, r)) {
                s->begin[s->unit[cell(s, i, r)] + 2]++;
                all++;
            }
    s->object = malloc((all + 1) * sizeof *s->object);
    if (!s->object)
        return no_memory();
    for (size_t i = 2; i < n + 2; i++)
        s->begin[i] += s->begin[i - 1];
    for (size_t i = 0; i < s->objects; i++)
        for (size_t r = 0; r < s->ranks; r++)
            if (is_new(s, i, r))
                s->object[s->begin[s->unit[cell(s, i, r)] + 1]++] = i;
    return 0;
}

static int side_open(struct side *s, const struct units_side *in)
{
    int64_t number;
    s->in = *in;
    scan_objects(in->scan, &s->objects);
    s->ranks = in->layout->n;
    s->places = 1;
    for (size_t i = 0; i < s->ranks; i++)
        for (int experts = 0; experts < 2; experts++) {
            uint32_t at = place_of(&in->layout->rank[i], experts);
            if (at >= s->places)
                s->places = (size_t)at + 1;
        }
    for (size_t i = 0; scan_path_at(in->scan, i, &number); i++)
        if (number >= 0 && (size_t)number >= s->paths)
            s->paths = (size_t)number + 1;
    s->path = calloc(s->ranks + 1, sizeof *s->path);
    return s->path ? learn_all(s) : no_memory();
}

int units_open(const struct units_side *a, const struct units_side *b,
               const struct align *names, struct units **out)
{
    struct units *u = calloc(1, sizeof *u);
    bool paths;
    int code;
    *out = NULL;
    if (!u)
        return no_memory();
    u->names = names;
    code = side_open(&u->side[0], a);
    if (!code)
        code = side_open(&u->side[1], b);
    paths = has_paths(&u->side[0]) && has_paths(&u->side[1]);
    for (int i = 0; i < 2 && !code; i++) {
        u->side[i].by_rank = u->side[i].by_rank || align_is_by_rank(names);
        code = name_objects(u, i, paths);
    }
    for (int i = 0; i < 2 && !code; i++)
        code = list_objects(u, i);
    if (code) {
        units_close(u);
        return code;
    }
    *out = u;
    return 0;
}

static void side_free(struct side *s)
{
    for (size_t i = 0; i < s->series_n; i++) {
        free(s->series[i].name);
        free(s->series[i].count);
        free(s->series[i].least);
    }
    free(s->series);
    free(s->unit);
    free(s->object);
    free(s->begin);
    for (size_t i = 0; s->path && i < s->ranks; i++)
        free(s->path[i]);
    free(s->path);
}

void units_close(struct units *u)
{
    if (!u)
        return;
    side_free(&u->side[0]);
    side_free(&u->side[1]);
    table_free(&u->units);
    table_free(&u->paths);
    free(u);
}

size_t units_n(const struct units *u)
{
    return u->units.n;
}

size_t units_of(const struct units *u, bool second, size_t object,
                size_t rank)
{
    const struct side *s = &u->side[second];
    uint32_t unit;
    if (object >= s->objects || rank >= s->ranks)
        return SIZE_MAX;
    unit = s->unit[cell(s, object, rank)];
    return unit == UINT32_MAX ? SIZE_MAX : unit;
}

const size_t *units_objects(const struct units *u, bool second, size_t unit,
                            size_t *n)
{
    const struct side *s = &u->side[second];
    *n = s->begin[unit + 1] - s->begin[unit];
    return s->object + s->begin[unit];
}

int64_t units_path(struct units *u, bool second, int64_t path, size_t rank)
{
    struct side *s = &u->side[second];
    size_t row = s->by_rank ? rank : 0;
    const char *text = scan_path(s->in.scan, path);
    char plain[TRD_MAX_NAME + 1], whole[ALIGN_NAME], name[ALIGN_NAME];
    if (!text || path < 0 || (size_t)path >= s->paths || rank >= s->ranks ||
        strlen(text) > TRD_MAX_NAME)
        return number_of(&u->paths, "");
    if (!s->path[row]) {
        s->path[row] = malloc(s->paths * sizeof **s->path);
        if (!s->path[row])
            return -1;
        for (size_t i = 0; i < s->paths; i++)
            s->path[row][i] = -1;
    }
    if (s->path[row][path] < 0) {
        const struct layout_rank *on = &s->in.layout->rank[rank];
        align_strip(text, plain);
        renumber(s, plain, on, whole);
        align_name(u->names, second, on, whole, name);
        s->path[row][path] = number_of(&u->paths, name);
    }
    return s->path[row][path];
}
