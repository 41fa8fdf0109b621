/* A record's fields in the promised order, and a record as text for eyes.
 *
 * max, min, mean, std and l2 are numpy's over all elements; the finite_*
 * fields are over finite ones. A figure that does not hold is null. The
 * histogram's text is in histogram_out.c. */
#include <inttypes.h>
#include <math.h>
#include <time.h>

#include "proto/figures.h"
#include "tools/out.h"

enum { MAX, MIN, MEAN, STD, L2, FIGURES };
enum {
    OBJECT_MAX = TRD_MAX_NAME + 32,
    NAME_MAX_BYTES = 2 * TRD_MAX_NAME + 128,
    WORDS_MAX = 48
};

static int is_whole(int dtype)
{
    int kind = trd_dtype_kind(dtype);
    return kind == TRD_KIND_SIGNED || kind == TRD_KIND_UNSIGNED;
}

void out_name(const struct row *r, char *out, size_t cap)
{
    struct name_parts p = {r->pass, r->io,       r->class_name, r->instance,
                           r->step, r->position, r->path};
    if (name_put(&p, out, cap))
        out[0] = '\0';
}

static void put_value(struct out *o, const char *name, int holds,
                      const struct row *r, union trd_value v)
{
    const struct out_fields *f = o->format->fields;
    if (!holds)
        f->null(o, name);
    else if (trd_dtype_kind(r->dtype) == TRD_KIND_SIGNED)
        f->whole(o, name, v.i);
    else if (is_whole(r->dtype))
        f->natural(o, name, v.u);
    else
        f->real(o, name, v.f);
}

static void put_real(struct out *o, const char *name, int holds, double v)
{
    if (holds)
        o->format->fields->real(o, name, v);
    else
        o->format->fields->null(o, name);
}

static void put_figures(struct out *o, const struct row *r)
{
    const struct trd_stats *s = &r->stats;
    double v[FIGURES];
    unsigned holds = trd_stats_numpy(s, r->dtype, v);
    if (is_whole(r->dtype)) {
        put_value(o, "max", s->has & TRD_HAS_RANGE, r, s->max);
        put_value(o, "min", s->has & TRD_HAS_RANGE, r, s->min);
    } else {
        put_real(o, "max", holds >> MAX & 1, v[MAX]);
        put_real(o, "min", holds >> MIN & 1, v[MIN]);
    }
    put_real(o, "mean", holds >> MEAN & 1, v[MEAN]);
    put_real(o, "std", holds >> STD & 1, v[STD]);
    put_real(o, "l2", holds >> L2 & 1, v[L2]);
    int abs_holds = s->has & TRD_HAS_ABS;
    union trd_value small = s->absmin;
    int small_holds = is_whole(r->dtype) ? small.u != 0 : small.f > 0;
    /* absmax of a signed integer may not fit int64_t: it is unsigned */
    if (abs_holds && is_whole(r->dtype)) {
        o->format->fields->natural(o, "absmax", s->absmax.u);
        if (small_holds)
            o->format->fields->natural(o, "absmin", small.u);
        else
            o->format->fields->null(o, "absmin");
        return;
    }
    put_real(o, "absmax", abs_holds, s->absmax.f);
    put_real(o, "absmin", abs_holds && small_holds, small.f);
}

static void put_counts(struct out *o, const struct trd_stats *s)
{
    const struct out_fields *f = o->format->fields;
    static const char *const names[] = {"nan", "pinf", "ninf", "zero",
                                        "subnormal"};
    const uint64_t count[] = {s->nan, s->pinf, s->ninf, s->zero,
                              s->subnormal};
    for (int i = 0; i < 5; i++)
        if (s->has & TRD_HAS_COUNTS)
            f->natural(o, names[i], count[i]);
        else
            f->null(o, names[i]);
}

/* The parts of a complex sample. */
static void complex_parts(int dtype, const uint8_t *p, double part[2])
{
    unsigned bytes = trd_dtype_bytes(dtype) / 2;
    struct reader r = reader_of(p, 2 * (size_t)bytes);
    part[0] = float_from_bits(dtype, get_le(&r, bytes));
    part[1] = float_from_bits(dtype, get_le(&r, bytes));
}

static void put_sample(struct out *o, int dtype, const uint8_t *p)
{
    const struct out_fields *f = o->format->fields;
    double part[2];
    switch (trd_dtype_kind(dtype)) {
    case TRD_KIND_SIGNED:
        f->whole(o, NULL, (int64_t)element_bits(dtype, p));
        break;
    case TRD_KIND_UNSIGNED:
    case TRD_KIND_PACKED:
        f->natural(o, NULL, element_bits(dtype, p));
        break;
    case TRD_KIND_COMPLEX:
        complex_parts(dtype, p, part);
        f->pair(o, NULL, part[0], part[1]);
        break;
    default:
        f->real(o, NULL, element_f64(dtype, p));
        break;
    }
}

static void put_lists(struct out *o, const struct row *r)
{
    const struct out_fields *f = o->format->fields;
    const uint8_t *p = (const uint8_t *)r->samples.text;
    unsigned bytes = trd_dtype_bytes(r->dtype);
    f->list(o, "samples");
    for (uint32_t i = 0; i < r->stats.sample_n; i++)
        put_sample(o, r->dtype, p + (size_t)i * bytes);
    f->list_end(o);
}

static void put_labels(struct out *o, const struct row *r)
{
    const struct out_fields *f = o->format->fields;
    f->list(o, "labels");
    for (unsigned bit = 0; bit < 32; bit++)
        if (r->labels >> bit & 1 && trd_label_name(bit))
            f->text(o, NULL, slice_of(trd_label_name(bit)));
    if (r->note.n)
        f->text(o, NULL, r->note);
    f->list_end(o);
}

/* Of a text or dump, and one of them may be NaN or infinite: whole numbers
 * have no mean, and l2 is there only where all is finite. */
static int may_be_nonfinite(const struct trd_stats *s)
{
    return s->has & TRD_IS_GIVEN && s->has & TRD_HAS_MEAN &&
           !(s->has & TRD_HAS_L2);
}

/* 1 if finite_* differ from numpy's figures or could. */
static int has_nonfinite(const struct trd_stats *s)
{
    if (s->nan || s->pinf || s->ninf)
        return 1;
    if (!may_be_nonfinite(s) || s->n == 0)
        return 0;
    return !isfinite(s->max.f) || !isfinite(s->min.f) ||
           !isfinite(s->mean) || !isfinite(s->std);
}

static void put_finite(struct out *o, const struct row *r)
{
    const struct trd_stats *s = &r->stats;
    int given = may_be_nonfinite(s);
    int range = s->has & TRD_HAS_RANGE, mean = s->has & TRD_HAS_MEAN;
    put_value(o, "finite_max", range && (!given || isfinite(s->max.f)), r,
              s->max);
    put_value(o, "finite_min", range && (!given || isfinite(s->min.f)), r,
              s->min);
    put_real(o, "finite_mean", mean && isfinite(s->mean), s->mean);
    put_real(o, "finite_std", mean && isfinite(s->std), s->std);
    put_real(o, "finite_l2", s->has & TRD_HAS_L2, s->l2);
}

/* Which elements the samples are, in words; 0 where that goes without. */
static int sampling_words(const struct trd_stats *s, char out[WORDS_MAX])
{
    if (s->sampling == TRD_EQUIDISTANT)
        return 0;
    snprintf(out, WORDS_MAX, "%s%s %" PRIu64,
             trd_sampling_name((int)s->sampling),
             s->sampling == TRD_RANDOM ? " seed" : "", s->sampling_arg);
    return 1;
}

static void put_sampling(struct out *o, const struct trd_stats *s)
{
    const struct out_fields *f = o->format->fields;
    char words[WORDS_MAX];
    if (sampling_words(s, words))
        f->text(o, "sampling", slice_of(words));
    else if (o->format->always_all)
        f->null(o, "sampling");
}

static void put_histogram(struct out *o, const struct row *r)
{
    const struct out_fields *f = o->format->fields;
    if (r->histogram.kind)
        f->histogram(o, "histogram", r->dtype, &r->histogram);
    else if (o->format->always_all)
        f->null(o, "histogram");
}

static void put_object(struct out *o, const struct row *r)
{
    const struct out_fields *f = o->format->fields;
    char object[OBJECT_MAX];
    if (!r->object) {
        f->null(o, "class");
        f->null(o, "instance");
        f->null(o, "object");
        f->null(o, "module");
        return;
    }
    snprintf(object, sizeof object, "%.*s-%" PRIu64, (int)r->class_name.n,
             r->class_name.text, r->instance);
    f->text(o, "class", r->class_name);
    f->natural(o, "instance", r->instance);
    f->text(o, "object", slice_of(object));
    f->text(o, "module", r->module);
}

static const char *io_name(int io)
{
    return io == TRD_INPUT ? "input" : io == TRD_OUTPUT ? "output" : "";
}

void out_fields_of(struct out *o, const struct row *r)
{
    const struct out_fields *f = o->format->fields;
    const struct trd_stats *s = &r->stats;
    char name[NAME_MAX_BYTES], hash[17];
    f->start(o);
    f->text(o, "run", slice_of(o->run));
    f->natural(o, "attempt", r->attempt);
    f->natural(o, "rank", r->rank);
    f->natural(o, "seq", r->seq);
    f->whole(o, "ts_ns", r->ts_ns);
    f->text(o, "pass", slice_of(trd_pass_name(r->pass)));
    put_object(o, r);
    f->natural(o, "step", r->step);
    f->natural(o, "iteration", r->iteration);
    f->natural(o, "microbatch", r->microbatch);
    f->flag(o, "recompute", (r->labels & TRD_L_RECOMPUTE) != 0);
    f->text(o, "io", slice_of(io_name(r->io)));
    f->natural(o, "position", r->position);
    f->text(o, "path", r->path);
    f->text(o, "dtype", slice_of(trd_dtype_name(r->dtype)));
    f->list(o, "shape");
    for (uint32_t i = 0; i < r->ndim; i++)
        f->whole(o, NULL, r->shape[i]);
    f->list_end(o);
    f->natural(o, "n", s->n);
    put_figures(o, r);
    put_counts(o, s);
    snprintf(hash, sizeof hash, "%016" PRIx64, s->hash);
    if (s->has & TRD_HAS_HASH)
        f->text(o, "hash", slice_of(hash));
    else
        f->null(o, "hash");
    put_lists(o, r);
    out_name(r, name, sizeof name);
    f->text(o, "name", slice_of(name));
    put_labels(o, r);
    if (o->format->always_all || has_nonfinite(s))
        put_finite(o, r);
    put_sampling(o, s);
    put_histogram(o, r);
    f->stop(o);
}

/* ---- text ---- */

enum { NUMBER_WIDTH = 13, PER_LINE = 5 };

static void short_number(double v, char out[OUT_NUMBER_MAX])
{
    if (isfinite(v))
        snprintf(out, OUT_NUMBER_MAX, "%.6g", v);
    else
        out_number(v, out);
}

/* Cells of fixed width, PER_LINE to a line. */
static void say(struct out *o, int *column, const char *label,
                const char *value)
{
    if (*column == PER_LINE) {
        fputc('\n', o->file);
        *column = 0;
    }
    if (*column == 0)
        fputs("   ", o->file);
    ++*column;
    if (label)
        fprintf(o->file, " %7s %-*s", label, NUMBER_WIDTH - 3, value);
    else
        fprintf(o->file, " %*s", NUMBER_WIDTH, value);
}

static const char *const figure_names[FIGURES] = {"max", "min", "mean",
                                                  "std", "l2"};

/* max or min of an integer dtype, exactly. */
static void whole_number(int dtype, union trd_value v,
                         char out[OUT_NUMBER_MAX])
{
    if (trd_dtype_kind(dtype) == TRD_KIND_SIGNED)
        snprintf(out, OUT_NUMBER_MAX, "%" PRId64, v.i);
    else
        snprintf(out, OUT_NUMBER_MAX, "%" PRIu64, v.u);
}

/* The figures over the finite elements, where those above are not. */
static void say_finite(struct out *o, const struct row *r)
{
    const struct trd_stats *s = &r->stats;
    int range = s->has & TRD_HAS_RANGE, mean = s->has & TRD_HAS_MEAN;
    const double v[FIGURES] = {s->max.f, s->min.f, s->mean, s->std, s->l2};
    const int holds[FIGURES] = {range, range, mean, mean,
                                s->has & TRD_HAS_L2};
    char text[OUT_NUMBER_MAX];
    int column = 0;
    /* of a log's figures those that are not finite are all there is */
    if (!has_nonfinite(s) || (s->has & TRD_IS_GIVEN))
        return;
    fputs("    over finite elements:\n", o->file);
    for (int i = 0; i < FIGURES; i++) {
        short_number(v[i], text);
        say(o, &column, figure_names[i],
            holds[i] && isfinite(v[i]) ? text : "-");
    }
    fputc('\n', o->file);
}

static void say_figures(struct out *o, const struct row *r)
{
    double v[FIGURES];
    char text[OUT_NUMBER_MAX];
    unsigned holds = trd_stats_numpy(&r->stats, r->dtype, v);
    int column = 0;
    for (int i = 0; i < FIGURES; i++) {
        short_number(v[i], text);
        if (i <= MIN && is_whole(r->dtype))
            whole_number(r->dtype, i == MAX ? r->stats.max : r->stats.min,
                         text);
        say(o, &column, figure_names[i], holds >> i & 1 ? text : "-");
    }
    fputc('\n', o->file);
    say_finite(o, r);
}

static void say_counts(struct out *o, const struct trd_stats *s)
{
    static const char *const names[] = {"nan", "+inf", "-inf", "zero",
                                        "subnorm"};
    const uint64_t count[] = {s->nan, s->pinf, s->ninf, s->zero,
                              s->subnormal};
    char text[OUT_NUMBER_MAX];
    int column = 0;
    if (!(s->has & TRD_HAS_COUNTS))
        return;
    for (int i = 0; i < 5; i++) {
        int alarm = o->color && i < 3 && count[i];
        snprintf(text, sizeof text, "%" PRIu64, count[i]);
        if (alarm)
            fputs("\033[31m", o->file);
        say(o, &column, names[i], text);
        if (alarm)
            fputs("\033[0m", o->file);
    }
    fputc('\n', o->file);
}

static void say_samples(struct out *o, const struct row *r)
{
    const uint8_t *p = (const uint8_t *)r->samples.text;
    unsigned bytes = trd_dtype_bytes(r->dtype);
    char text[2 * OUT_NUMBER_MAX + 2], im[OUT_NUMBER_MAX];
    char words[WORDS_MAX];
    double part[2];
    int column = 0;
    if (!r->stats.sample_n)
        return;
    if (sampling_words(&r->stats, words))
        fprintf(o->file, "    samples: %s\n", words);
    for (uint32_t i = 0; i < r->stats.sample_n; i++, p += bytes) {
        if (trd_dtype_kind(r->dtype) == TRD_KIND_COMPLEX) {
            complex_parts(r->dtype, p, part);
            short_number(part[0], text);
            short_number(part[1], im);
            strcat(text, *im == '-' ? "" : "+");
            strcat(strcat(text, im), "j");
        } else if (is_whole(r->dtype)) {
            union trd_value v = {.u = element_bits(r->dtype, p)};
            whole_number(r->dtype, v, text);
        } else {
            short_number(element_f64(r->dtype, p), text);
        }
        say(o, &column, NULL, text);
    }
    fputc('\n', o->file);
}

static void say_time(struct out *o, int64_t ts_ns)
{
    time_t s = (time_t)(ts_ns / 1000000000);
    struct tm tm;
    char text[32];
    if (localtime_r(&s, &tm) &&
        strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &tm))
        fprintf(o->file, "%s.%06d", text,
                (int)(ts_ns % 1000000000 / 1000));
}

static void say_head(struct out *o, const struct row *r)
{
    char name[NAME_MAX_BYTES];
    out_name(r, name, sizeof name);
    if (o->color)
        fputs("\033[1m", o->file);
    out_plain(o->file, slice_of(name));
    if (o->color)
        fputs("\033[0m", o->file);
    fprintf(o->file, "  rank %" PRIu32, r->rank);
    if (r->attempt)
        fprintf(o->file, " attempt %" PRIu32, r->attempt);
    fprintf(o->file, "  iteration %" PRIu64, r->iteration);
    if (r->microbatch)
        fprintf(o->file, ".%" PRIu32, r->microbatch);
    for (unsigned bit = 0; bit < 32; bit++)
        if (r->labels >> bit & 1 && trd_label_name(bit))
            fprintf(o->file, "  %s", trd_label_name(bit));
    if (r->note.n) {
        fputs("  ", o->file);
        out_plain(o->file, r->note);
    }
    fputc('\n', o->file);
}

void out_text_record(struct out *o, const struct row *r)
{
    if (o->n > 1)
        fputc('\n', o->file);
    say_head(o, r);
    fprintf(o->file, "    %s [", trd_dtype_name(r->dtype));
    for (uint32_t i = 0; i < r->ndim; i++)
        fprintf(o->file, "%s%" PRId64, i ? ", " : "", r->shape[i]);
    fputs("]", o->file);
    if (r->object && r->module.n) {
        fputs("  module ", o->file);
        out_plain(o->file, r->module);
    }
    if (r->path.n) {
        fputs("  path ", o->file);
        out_plain(o->file, r->path);
    }
    fprintf(o->file, "  seq %" PRIu64 "  ", r->seq);
    say_time(o, r->ts_ns);
    if (r->stats.has & TRD_HAS_HASH)
        fprintf(o->file, "  hash %016" PRIx64, r->stats.hash);
    fputc('\n', o->file);
    say_figures(o, r);
    say_counts(o, &r->stats);
    say_samples(o, r);
    out_text_histogram(o, r);
}
