/* The tensors of one entry of a dump of msprobe. json-c reads the entry. */
#include <json-c/json.h>
#include <math.h>
#include <stdio.h>

#include "tools/msprobe.h"

struct walk {
    const struct msprobe_take *take;
    struct msprobe_tensor t;
    bool counts_null; /* gradients: what has none takes a place too */
    int code;
    size_t n;         /* of path */
    size_t skip;      /* its start that is no path in the call */
    char path[TRD_MAX_NAME + 1];
};

static void bad(struct walk *w, const char *member, const char *why)
{
    char path[TRD_MAX_NAME + 16];
    snprintf(path, sizeof path, "%s%s%s", w->path,
             w->n && *member ? "." : "", member);
    w->take->bad(w->take->to, path, why);
}

/* ---- a tensor ---- */

static struct json_object *member(struct json_object *o, const char *name)
{
    struct json_object *v = NULL;
    json_object_object_get_ex(o, name, &v);
    return v;
}

static const char *text_of(struct json_object *v)
{
    return json_object_is_type(v, json_type_string)
               ? json_object_get_string(v)
               : NULL;
}

/* "torch.float32", or "Float32" of MindSpore. */
static uint32_t dtype_of(const char *text)
{
    const char *dot = strrchr(text, '.');
    char name[32];
    size_t n = 0;
    for (const char *p = dot ? dot + 1 : text; *p && n + 1 < sizeof name; p++)
        name[n++] = (char)(*p >= 'A' && *p <= 'Z' ? *p - 'A' + 'a' : *p);
    name[n] = '\0';
    for (int d = 1; d < TRD_DTYPE_LIMIT; d++)
        if (d != TRD_TEXT && strcmp(trd_dtype_name(d), name) == 0)
            return (uint32_t)d;
    return TRD_OPAQUE;
}

static bool shape_of(struct walk *w, struct json_object *list)
{
    size_t n = json_object_array_length(list);
    struct wire_shape *s = &w->t.shape;
    uint64_t all = 1;
    if (n > TRD_MAX_DIMS) {
        bad(w, "shape", "more than 64 dimensions");
        return false;
    }
    s->ndim = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        struct json_object *v = json_object_array_get_idx(list, i);
        int64_t d = json_object_get_int64(v);
        if (!json_object_is_type(v, json_type_int) || d < 0) {
            bad(w, "shape", "a dimension is no whole number from 0");
            return false;
        }
        if (d && all > (uint64_t)INT64_MAX / (uint64_t)d) {
            bad(w, "shape", "more than 2^63 - 1 elements");
            return false;
        }
        s->dim[i] = d;
        all *= (uint64_t)d;
    }
    w->t.stats.n = all;
    return true;
}

struct figure {
    bool known;
    double f;
    int64_t i;
};

/* What no integer of 64 bits holds, json-c sets to its end, which is a value
 * of integer tensors; msprobe writes others with a point. */
static bool is_beyond(uint32_t dtype, struct json_object *v)
{
    int kind = trd_dtype_kind((int)dtype);
    double f = json_object_get_double(v);
    return kind != TRD_KIND_SIGNED && kind != TRD_KIND_UNSIGNED &&
           (f <= -0x1p63 || f >= 0x1p63);
}

/* Numbers, truth values and null, also written as strings. */
static bool figure_of(struct walk *w, struct json_object *tensor,
                      const char *name, struct figure *out)
{
    struct json_object *v = member(tensor, name);
    const char *text = text_of(v);
    *out = (struct figure){.known = v != NULL};
    if (!v)
        return true;
    if (text) {
        static const struct {
            const char *text;
            bool known;
            double f;
        } word[] = {{"null", false, 0},      {"None", false, 0},
                    {"", false, 0},          {"True", true, 1},
                    {"False", true, 0},      {"nan", true, (double)NAN},
                    {"NaN", true, (double)NAN},
                    {"inf", true, (double)INFINITY},
                    {"-inf", true, -(double)INFINITY}};
        for (size_t i = 0; i < sizeof word / sizeof *word; i++)
            if (strcmp(text, word[i].text) == 0) {
                *out = (struct figure){word[i].known, word[i].f,
                                       word[i].f == 1};
                return true;
            }
    } else if (json_object_is_type(v, json_type_boolean)) {
        out->i = json_object_get_boolean(v);
        out->f = (double)out->i;
        return true;
    } else if (json_object_is_type(v, json_type_int)) {
        if (is_beyond(w->t.dtype, v)) {
            bad(w, name, "the number is out of range");
            return false;
        }
        out->i = json_object_get_int64(v);
        out->f = json_object_get_double(v);
        /* beyond int64 are those of uint64 */
        if (out->f > 0x1p63)
            out->i = (int64_t)json_object_get_uint64(v);
        return true;
    } else if (json_object_is_type(v, json_type_double)) {
        out->f = json_object_get_double(v);
        if (isinf(out->f) && strpbrk(json_object_get_string(v), "123456789")) {
            bad(w, name, "the number is out of range");
            return false;
        }
        if (fabs(out->f) < 0x1p53)
            out->i = (int64_t)out->f;
        return true;
    }
    bad(w, name, "neither a number nor null");
    return false;
}

static union trd_value value_of(uint32_t dtype, const struct figure *f)
{
    union trd_value v = {.i = f->i};
    int kind = trd_dtype_kind((int)dtype);
    if (kind != TRD_KIND_SIGNED && kind != TRD_KIND_UNSIGNED)
        v.f = dtype == TRD_F64 || kind == TRD_KIND_COMPLEX
                  ? f->f
                  : (double)(float)f->f;
    return v;
}

/* The L2 norm overflows where the mean does not: then both are left out, but
 * for what is not finite itself. */
static bool figures_of(struct walk *w, struct json_object *o)
{
    struct trd_stats *s = &w->t.stats;
    struct figure max, min, mean, norm;
    s->has = TRD_IS_GIVEN;
    s->std = (double)NAN;
    if (!figure_of(w, o, "Max", &max) || !figure_of(w, o, "Min", &min) ||
        !figure_of(w, o, "Mean", &mean) || !figure_of(w, o, "Norm", &norm))
        return false;
    if (s->n == 0 || trd_dtype_kind((int)w->t.dtype) == TRD_KIND_PACKED)
        return true;
    if (max.known && min.known) {
        s->has |= TRD_HAS_RANGE;
        s->max = value_of(w->t.dtype, &max);
        s->min = value_of(w->t.dtype, &min);
    }
    if (mean.known && norm.known && isfinite(mean.f) && isfinite(norm.f)) {
        s->has |= TRD_HAS_MEAN | TRD_HAS_L2;
        s->mean = mean.f;
        s->l2 = fabs(norm.f); /* of a scalar it has the sign */
    } else if (mean.known && !isfinite(mean.f)) {
        s->has |= TRD_HAS_MEAN;
        s->mean = mean.f;
    }
    return true;
}

static void take_tensor(struct walk *w, struct json_object *o)
{
    struct json_object *shape = member(o, "shape");
    const char *dtype = text_of(member(o, "dtype"));
    struct msprobe_tensor *t = &w->t;
    memset(&t->shape, 0, sizeof t->shape);
    memset(&t->stats, 0, sizeof t->stats);
    if (!dtype) {
        bad(w, "dtype", "not the name of a dtype");
    } else if (!json_object_is_type(shape, json_type_array)) {
        bad(w, "shape", "not a list");
    } else if (t->dtype = dtype_of(dtype), shape_of(w, shape) &&
                                               figures_of(w, o)) {
        t->path = (struct slice){w->path + w->skip, w->n - w->skip};
        w->code = w->take->tensor(w->take->to, t);
    }
    t->position++;
}

/* ---- what is around tensors ---- */

static bool is_tensor(struct json_object *o)
{
    const char *type = text_of(member(o, "type"));
    return type && (strstr(type, "Tensor") || strstr(type, "ndarray"));
}

static bool is_plain(struct json_object *o)
{
    return text_of(member(o, "type")) &&
           (member(o, "value") || member(o, "format") ||
            member(o, "group_id"));
}

static void take_value(struct walk *w, struct json_object *v);

static void take_member(struct walk *w, const char *key,
                        struct json_object *v)
{
    size_t n = w->n, more = strlen(key);
    size_t dot = w->n > w->skip;
    if (w->n + more + dot > TRD_MAX_NAME) {
        bad(w, "", "a path of more than 1024 bytes below it");
        return;
    }
    if (dot)
        w->path[w->n++] = '.';
    memcpy(w->path + w->n, key, more + 1);
    w->n += more;
    take_value(w, v);
    w->n = n;
    w->path[n] = '\0';
}

static void take_value(struct walk *w, struct json_object *v)
{
    if (w->code)
        return;
    if (json_object_is_type(v, json_type_array)) {
        size_t n = json_object_array_length(v);
        for (size_t i = 0; i < n && !w->code; i++) {
            char key[24];
            snprintf(key, sizeof key, "%zu", i);
            take_member(w, key, json_object_array_get_idx(v, i));
        }
    } else if (!json_object_is_type(v, json_type_object)) {
        w->t.position += w->counts_null && !v;
    } else if (is_tensor(v)) {
        take_tensor(w, v);
    } else if (!is_plain(v)) {
        json_object_object_foreach(v, key, item)
            take_member(w, key, item);
    }
}

/* One part of an entry: "output", ... */
static void take_part(struct walk *w, const char *name, struct json_object *v)
{
    if (!v || w->code)
        return;
    w->n = (size_t)snprintf(w->path, sizeof w->path, "%s.", name);
    w->skip = w->n;
    if (json_object_is_type(v, json_type_array) ||
        json_object_is_type(v, json_type_object)) {
        take_value(w, v);
    } else {
        w->path[w->n - 1] = '\0';
        bad(w, "", "neither a list nor a dict");
    }
    w->n = w->skip = 0;
    w->path[0] = '\0';
}

/* {"weight": [TENSOR]}, or without the list. */
static void take_parameters(struct walk *w, const char *part,
                            struct json_object *o)
{
    if (!o)
        return;
    if (!json_object_is_type(o, json_type_object)) {
        bad(w, part, "not a dict");
        return;
    }
    json_object_object_foreach(o, key, v) {
        struct json_object *one = v;
        if (json_object_is_type(v, json_type_array))
            one = json_object_array_length(v) == 1
                      ? json_object_array_get_idx(v, 0)
                      : NULL;
        if (w->code)
            return;
        if (one && is_tensor(one))
            take_member(w, key, one);
        else if (v)
            bad(w, key, "not one tensor");
    }
}

static void take_entry(struct walk *w, int pass, struct json_object *o)
{
    static const struct {
        const char *name;
        int pass, io;
        bool goes_on; /* with the positions of the one before */
    } part[] = {{"input_args", TRD_FORWARD, TRD_INPUT, false},
                {"input_kwargs", TRD_FORWARD, TRD_INPUT, true},
                {"output", TRD_FORWARD, TRD_OUTPUT, false},
                {"input", TRD_BACKWARD, TRD_INPUT, false},
                {"output", TRD_BACKWARD, TRD_OUTPUT, false}};
    w->t.pass = pass;
    if (pass == TRD_GRAD) {
        take_parameters(w, "", o);
        return;
    }
    w->counts_null = pass == TRD_BACKWARD;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        if (part[i].pass != pass)
            continue;
        if (!part[i].goes_on)
            w->t.position = 0;
        w->t.io = part[i].io;
        take_part(w, part[i].name, member(o, part[i].name));
    }
    w->t.pass = TRD_PARAM;
    w->t.io = TRD_IO_NONE;
    w->t.position = 0;
    if (pass == TRD_FORWARD)
        take_parameters(w, "parameters", member(o, "parameters"));
}

int msprobe_tensors(const struct msprobe_entry *e,
                    const struct msprobe_take *take)
{
    struct walk w = {.take = take};
    struct json_tokener *reader;
    struct json_object *o;
    enum json_tokener_error error;
    if (e->value.n > MSPROBE_MAX_ENTRY) {
        bad(&w, "", "the entry is longer than 16 MiB");
        return 0;
    }
    if (*e->value.text != '{') {
        bad(&w, "", "not a dict");
        return 0;
    }
    reader = json_tokener_new_ex(MSPROBE_MAX_DEPTH);
    if (!reader) {
        bad(&w, "", "out of memory");
        return 0;
    }
    json_tokener_set_flags(reader, JSON_TOKENER_STRICT |
                                       JSON_TOKENER_ALLOW_TRAILING_CHARS |
                                       JSON_TOKENER_VALIDATE_UTF8);
    o = json_tokener_parse_ex(reader, e->value.text, (int)e->value.n);
    error = json_tokener_get_error(reader);
    if (error != json_tokener_success) {
        char why[128];
        snprintf(why, sizeof why, "no valid JSON, at byte %zu: %s",
                 json_tokener_get_parse_end(reader),
                 json_tokener_error_desc(error));
        bad(&w, "", why);
    } else {
        take_entry(&w, e->name.pass, o);
    }
    json_object_put(o);
    json_tokener_free(reader);
    return w.code;
}
