/* The original script's log, made from stored records.
 *
 * The script differs from tracerd in what it counts: objects of a class in
 * the order of their first call, forward calls with recomputes among them,
 * backward calls by their own order; the inputs of forward from 1, since
 * args[0] is self. It knows positional tensors only, logs no gradient of an
 * input, and after each backward call logs the gradients of the output again
 * under the name of the output.
 *
 * One process (stream) after the other, each with the counts of its own.
 * Records that were imported from such a log are written as they were. */
#include "tools/seed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/figures.h"
#include "proto/text.h"
#include "tools/tracectl.h"

enum {
    RING = 8,                   /* calls of an object that may interleave */
    LINE_MAX_BYTES = 2 * 1024 * 1024 /* 4096 numbers of a double's length */
};

/* A call that was numbered: records of one call share its number. */
struct call {
    uint64_t step, number;
    uint32_t microbatch;
    uint64_t seen; /* bits of (io, position) */
};

/* The calls that the script numbers another way than tracerd. */
enum kind { BACKWARD, RECOMPUTE, KINDS };

struct object {
    uint64_t id;        /* in the run, 0: free */
    uint64_t instance;  /* as the script counts */
    uint64_t last;      /* highest step of a forward call */
    uint64_t extra;     /* recomputes so far: forward calls on top of it */
    uint64_t backwards;
    unsigned at[KINDS];
    struct call call[KINDS][RING];
};

struct class_count {
    char *name;
    size_t n;
    uint64_t instances;
};

/* What tells one call's records from the next call's. */
struct group {
    int open;
    uint64_t object, step, position;
    int64_t ts_ns;
    int pass, io, recompute, text;
};

struct seed {
    FILE *file;
    struct text_line line;
    char *text;            /* a printed line */
    uint64_t stream;
    int started;
    uint64_t counter;
    struct group group;
    char *held;            /* repeated lines until the call is complete */
    size_t held_n, held_room;
    struct object *object; /* hash table, a power of two */
    size_t objects, object_room;
    struct class_count *classes;
    size_t class_n, class_room;
    uint32_t rank;         /* of the stream */
    struct seed_result result;
};

static int no_memory(void)
{
    return ctl_fail(CTL_FAILED, "out of memory");
}

/* ---- counts of a stream ---- */

static void forget_stream(struct seed *s)
{
    for (size_t i = 0; i < s->class_n; i++)
        free(s->classes[i].name);
    s->class_n = 0;
    if (s->object)
        memset(s->object, 0, s->object_room * sizeof *s->object);
    s->objects = 0;
    s->counter = 0;
    s->group.open = 0;
}

static struct object *slot(struct object *table, size_t room, uint64_t id)
{
    size_t i = (size_t)((id * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
    for (i &= room - 1; table[i].id && table[i].id != id;)
        i = (i + 1) & (room - 1);
    return &table[i];
}

static int grow_objects(struct seed *s)
{
    size_t room = s->object_room ? 2 * s->object_room : 64;
    struct object *table = calloc(room, sizeof *table);
    if (!table)
        return no_memory();
    for (size_t i = 0; i < s->object_room; i++)
        if (s->object[i].id)
            *slot(table, room, s->object[i].id) = s->object[i];
    free(s->object);
    s->object = table;
    s->object_room = room;
    return 0;
}

/* The next number of the class. */
static int count_class(struct seed *s, struct slice name, uint64_t *out)
{
    for (size_t i = 0; i < s->class_n; i++)
        if (s->classes[i].n == name.n &&
            memcmp(s->classes[i].name, name.text, name.n) == 0) {
            *out = ++s->classes[i].instances;
            return 0;
        }
    if (s->class_n == s->class_room) {
        size_t room = s->class_room ? 2 * s->class_room : 16;
        struct class_count *more = realloc(s->classes, room * sizeof *more);
        if (!more)
            return no_memory();
        s->classes = more;
        s->class_room = room;
    }
    struct class_count *c = &s->classes[s->class_n];
    c->name = malloc(name.n + 1);
    if (!c->name)
        return no_memory();
    memcpy(c->name, name.text, name.n);
    c->n = name.n;
    *out = c->instances = 1;
    s->class_n++;
    return 0;
}

static int find_object(struct seed *s, const struct row *r,
                       struct object **out)
{
    if (2 * s->objects >= s->object_room && grow_objects(s))
        return CTL_FAILED;
    struct object *o = slot(s->object, s->object_room, r->object);
    if (!o->id) {
        if (count_class(s, r->class_name, &o->instance))
            return CTL_FAILED;
        o->id = r->object;
        s->objects++;
    }
    *out = o;
    return 0;
}

static uint64_t next_number(struct object *o, enum kind kind)
{
    if (kind == BACKWARD)
        return ++o->backwards;
    return o->last + ++o->extra;
}

/* The script's number of the call that the record belongs to. The same place
 * seen twice for one step is another call: a second backward. */
static uint64_t number_call(struct object *o, enum kind kind,
                            const struct row *r)
{
    struct call *ring = o->call[kind];
    uint64_t place = (r->position & 31) + (r->io == TRD_OUTPUT ? 32 : 0);
    uint64_t bit = UINT64_C(1) << place;
    struct call *c = NULL;
    for (int i = 0; i < RING && !c; i++)
        if (ring[i].number && ring[i].step == r->step &&
            ring[i].microbatch == r->microbatch)
            c = &ring[i];
    if (c && !(c->seen & bit)) {
        c->seen |= bit;
        return c->number;
    }
    if (!c)
        c = &ring[o->at[kind]++ % RING];
    c->step = r->step;
    c->microbatch = r->microbatch;
    c->number = next_number(o, kind);
    c->seen = bit;
    return c->number;
}

static uint64_t script_step(struct object *o, const struct row *r)
{
    if (r->pass == TRD_BACKWARD)
        return number_call(o, BACKWARD, r);
    if (r->labels & TRD_L_RECOMPUTE)
        return number_call(o, RECOMPUTE, r);
    if (r->step > o->last)
        o->last = r->step;
    return r->step + o->extra;
}

/* ---- lines ---- */

static int64_t time_of_day_us(int64_t ts_ns)
{
    time_t t = (time_t)(ts_ns / 1000000000);
    int64_t us = ts_ns % 1000000000 / 1000;
    struct tm tm;
    if (!localtime_r(&t, &tm))
        return us;
    return ((int64_t)tm.tm_hour * 3600 + tm.tm_min * 60 + tm.tm_sec % 60) *
               1000000 +
           us;
}

/* Figures and samples; 0 when the script's line cannot show the tensor. The
 * script works in float32; a text log's numbers are printed as they were. */
static int fill_figures(struct text_line *line, const struct row *r)
{
    const uint8_t *p = (const uint8_t *)r->samples.text;
    unsigned bytes = trd_dtype_bytes(r->dtype);
    int kind = trd_dtype_kind(r->dtype);
    int exact = r->dtype == TRD_TEXT;
    double v[5];
    line->ndim = r->ndim;
    memcpy(line->shape, r->shape, sizeof line->shape);
    line->n = r->stats.n;
    line->no_figures = line->n == 0;
    line->sample_n = 0;
    if (kind == TRD_KIND_COMPLEX || kind == TRD_KIND_PACKED)
        return 0;
    if (line->no_figures)
        return 1;
    if ((trd_stats_numpy(&r->stats, r->dtype, v) & 15) != 15)
        return 0;
    for (int i = 0; i < 4; i++)
        line->figure[i] = exact ? v[i] : (double)(float)v[i];
    for (uint32_t i = 0; i < r->stats.sample_n; i++, p += bytes) {
        double x = element_f64(r->dtype, p);
        line->sample[i] = exact ? x : (double)(float)x;
    }
    line->sample_n = r->stats.sample_n;
    return 1;
}

static int print_line(struct seed *s, struct slice name, uint64_t counter,
                      size_t *n)
{
    s->line.name = name;
    s->line.counter = counter;
    int got = text_print(&s->line, s->text, LINE_MAX_BYTES - 1);
    if (got < 0)
        return ctl_fail(CTL_BAD, "a line cannot be printed: %s",
                        trd_strerror(got));
    s->text[got] = '\n';
    *n = (size_t)got + 1;
    s->result.lines++;
    return 0;
}

static int write_text(struct seed *s, const char *text, size_t n)
{
    if (n && fwrite(text, 1, n, s->file) != n)
        return ctl_fail(CTL_FAILED, "cannot write: %s", ctl_errno(errno));
    return 0;
}

/* Keeps the printed line of n bytes for the end of the call. */
static int hold_line(struct seed *s, size_t n)
{
    if (s->held_n + n > s->held_room) {
        size_t room = 2 * (s->held_n + n);
        char *more = realloc(s->held, room);
        if (!more)
            return no_memory();
        s->held = more;
        s->held_room = room;
    }
    memcpy(s->held + s->held_n, s->text, n);
    s->held_n += n;
    return 0;
}

/* The call is complete: its repeated lines are a call of their own. */
static int end_call(struct seed *s)
{
    size_t n = s->held_n;
    s->group.open = 0;
    s->held_n = 0;
    if (n == 0)
        return 0;
    s->counter++;
    return write_text(s, s->held, n);
}

/* Starts the next call unless the record belongs to the one before. */
static int begin_call(struct seed *s, const struct row *r)
{
    struct group g = {1,
                      r->object,
                      r->step,
                      r->position,
                      r->ts_ns,
                      r->pass,
                      r->io,
                      (r->labels & TRD_L_RECOMPUTE) != 0,
                      (r->labels & TRD_L_TEXT) != 0};
    const struct group *b = &s->group;
    int same = b->open && r->pass <= TRD_BACKWARD && b->object == g.object &&
               b->step == g.step && b->pass == g.pass && b->io == g.io &&
               b->recompute == g.recompute && b->text == g.text &&
               g.position > b->position && (!g.text || g.ts_ns == b->ts_ns);
    if (!same) {
        if (end_call(s))
            return CTL_FAILED;
        s->counter++;
    }
    s->group = g;
    return 0;
}

/* The index a path of a live record has in the script's tuple; -1: it is in
 * no tuple of tensors, so that the script does not see it. */
static int64_t tuple_index(struct slice path)
{
    int64_t v = 0;
    if (path.n > 9)
        return -1;
    for (size_t i = 0; i < path.n; i++) {
        if (path.text[i] < '0' || path.text[i] > '9')
            return -1;
        v = v * 10 + (path.text[i] - '0');
    }
    return v;
}

/* The path that an import gives to index 0 of a forward call. */
static int is_self(struct slice path)
{
    return path.n == 4 && !memcmp(path.text, "self", 4);
}

static const char *io_word(int io)
{
    return io == TRD_INPUT ? "input" : "output";
}

static struct slice call_name(char *out, size_t cap, const struct row *r,
                              uint64_t instance, uint64_t step, int io)
{
    int n = snprintf(out, cap, "%s-%.*s-%llu-%llu-%s",
                     trd_pass_name(r->pass), (int)r->class_name.n,
                     r->class_name.text, (unsigned long long)instance,
                     (unsigned long long)step, io_word(io));
    struct slice s = {out, n > 0 && (size_t)n < cap ? (size_t)n : 0};
    return s;
}

static int grad_line(struct seed *s, const struct row *r)
{
    char name[TRD_MAX_NAME + 32];
    size_t n = 0;
    int len = snprintf(name, sizeof name, "grad-%.*s", (int)r->path.n,
                       r->path.text);
    struct slice slice = {name, len > 0 ? (size_t)len : 0};
    s->line.index = 0;
    if (begin_call(s, r) || print_line(s, slice, s->counter, &n))
        return CTL_FAILED;
    return write_text(s, s->text, n);
}

/* A line of an imported log, as it was. */
static int text_record(struct seed *s, const struct row *r)
{
    char name[TRD_MAX_NAME + 128];
    size_t n;
    struct slice slice =
        call_name(name, sizeof name, r, r->instance, r->step, r->io);
    s->line.index = r->position;
    if (r->pass == TRD_FORWARD && r->io == TRD_INPUT && !is_self(r->path))
        s->line.index++;
    if (begin_call(s, r) || print_line(s, slice, s->counter, &n))
        return CTL_FAILED;
    return write_text(s, s->text, n);
}

static int live_record(struct seed *s, const struct row *r)
{
    char name[TRD_MAX_NAME + 128];
    struct object *o;
    struct slice slice;
    size_t n;
    int64_t index = tuple_index(r->path);
    if (find_object(s, r, &o))
        return CTL_FAILED;
    if (r->pass == TRD_BACKWARD && r->io == TRD_OUTPUT)
        return 0; /* the gradient of an input: not in the script's log */
    uint64_t step = script_step(o, r);
    if (index < 0)
        return 0;
    s->line.index = (uint64_t)index;
    if (r->pass == TRD_FORWARD && r->io == TRD_INPUT)
        s->line.index++;
    if (begin_call(s, r))
        return CTL_FAILED;
    slice = call_name(name, sizeof name, r, o->instance, step, r->io);
    if (print_line(s, slice, s->counter, &n) || write_text(s, s->text, n))
        return CTL_FAILED;
    if (r->pass == TRD_FORWARD)
        return 0;
    slice = call_name(name, sizeof name, r, o->instance, step, TRD_OUTPUT);
    if (print_line(s, slice, s->counter + 1, &n))
        return CTL_FAILED;
    return hold_line(s, n);
}

int seed_record(struct seed *s, const struct row *r)
{
    if (!s->started || s->stream != r->stream) {
        if (end_call(s))
            return CTL_FAILED;
        forget_stream(s);
        s->result.streams++;
        s->result.several_ranks |= s->started && s->rank != r->rank;
        s->started = 1;
        s->stream = r->stream;
        s->rank = r->rank;
    }
    int is_call = r->pass <= TRD_BACKWARD && r->object;
    if (!is_call && r->pass != TRD_GRAD)
        return 0;
    if (r->pass == TRD_GRAD && (r->labels & TRD_L_LOCAL))
        return 0; /* the script logs the accumulated one */
    s->line.time_us = time_of_day_us(r->ts_ns);
    if (!fill_figures(&s->line, r)) {
        s->result.left_out++;
        return 0;
    }
    if (r->stats.sample_n && r->stats.sampling != TRD_EQUIDISTANT) {
        s->result.other_samples++;
        return 0;
    }
    if (!is_call)
        return grad_line(s, r);
    return r->labels & TRD_L_TEXT ? text_record(s, r) : live_record(s, r);
}

int seed_open(FILE *file, struct seed **out)
{
    struct seed *s = calloc(1, sizeof *s);
    if (s)
        s->text = malloc(LINE_MAX_BYTES);
    if (!s || !s->text) {
        free(s);
        return no_memory();
    }
    s->file = file;
    *out = s;
    return 0;
}

int seed_close(struct seed *s, struct seed_result *out)
{
    if (!s)
        return 0;
    int code = end_call(s);
    forget_stream(s);
    *out = s->result;
    free(s->classes);
    free(s->object);
    free(s->held);
    free(s->text);
    free(s);
    return code;
}
