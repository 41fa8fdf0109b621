/* Importing a text log of the original script.
 *
 * The file is read twice: once for its hash, which makes the stream's
 * identity, and for its days; then line by line into records. The daemon
 * hears of it at the first good line, so that a file without one makes no
 * run. What the log does not say is settled so:
 * - position and path are the argument's, from 0: one less than the index of
 *   a forward input, whose index 0 is self;
 * - iteration of forward and backward is their step, microbatch is 1;
 * - the n-th line of a gradient's name has step and iteration n;
 * - backward-X-output is the gradient of the output again: labelled
 *   repeated. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/text.h"
#include "tools/clock.h"
#include "tools/import_stream.h"
#include "tools/lines.h"

enum { BAD_SHOWN = 20 /* bad lines named, the rest is counted */ };

struct text_import {
    const char *path;
    const struct import_options *options;
    struct import_result *result;
    int fd;
    uint64_t size;
    time_t mtime;
    /* from the first reading */
    uint64_t hash;
    int64_t least_us;
    struct clock_base base;
    /* while records are made */
    struct clock_days days;
    struct import_stream stream;
    uint64_t counter; /* the largest since it started from 1 */
    int restarts;
    struct text_line line;
    uint8_t samples[8 * TRD_MAX_SAMPLES];
};

static int cannot(const struct text_import *t, int error)
{
    return ctl_fail(CTL_FAILED, "cannot read '%s': %s", t->path,
                    ctl_errno(error));
}

static int is_blank(const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return 0;
    return 1;
}

/* ---- the first reading ---- */

static int read_days(struct text_import *t)
{
    struct lines l;
    struct clock_days days = {0};
    const char *line;
    size_t n;
    int got, too_long;
    int64_t last = 0;
    if (lines_open(&l, t->fd, t->size))
        return cannot(t, errno);
    while ((got = lines_next(&l, &line, &n, &too_long)) > 0) {
        int64_t us = clock_of_line(line, n);
        if (us >= 0)
            last = clock_next(&days, us);
    }
    t->hash = l.hash;
    t->least_us = days.least_us;
    int error = errno;
    lines_close(&l);
    if (got < 0)
        return cannot(t, error);
    if (!t->options->date)
        return clock_from_mtime(&t->base, t->mtime, last)
                   ? ctl_fail(CTL_BAD, "'%s' has no usable time of change; "
                                       "give --date",
                              t->path)
                   : 0;
    if (clock_from_date(&t->base, t->options->date))
        return ctl_fail(CTL_BAD, "--date is YYYY-MM-DD, not '%s'",
                        t->options->date);
    return 0;
}

/* ---- records ---- */

static void name_bad(struct text_import *t, uint64_t line, size_t column,
                     const char *why)
{
    if (++t->result->bad > BAD_SHOWN)
        return;
    fflush(stdout);
    fprintf(stderr, "%s:%llu:%zu: %s\n", t->path, (unsigned long long)line,
            column, why);
}

static int site_of(struct text_import *t, const struct text_name *name,
                   uint32_t *id)
{
    struct wire_site site = {.pass = (uint32_t)name->pass,
                             .io = (uint32_t)name->io,
                             .position = (uint32_t)t->line.index};
    char path[24];
    int is_input = name->pass == TRD_FORWARD && name->io == TRD_INPUT;
    int code = 0;
    if (name->pass == TRD_GRAD) {
        site.path = name->path;
    } else {
        const struct wire_object object = {(uint32_t)name->instance,
                                           name->class_name, {"", 0}};
        if (is_input && site.position)
            site.position--;
        snprintf(path, sizeof path, "%lu", (unsigned long)site.position);
        site.path = slice_of(is_input && !t->line.index ? "self" : path);
        code = words_object(t->stream.words, &object, &site.object);
    }
    return code ? code : words_site(t->stream.words, &site, id);
}

static int shape_of(struct text_import *t, uint32_t *id)
{
    struct wire_shape shape = {.ndim = t->line.ndim};
    memcpy(shape.dim, t->line.shape, sizeof shape.dim);
    return words_shape(t->stream.words, &shape, id);
}

static void figures_of(struct text_import *t, struct trd_stats *s)
{
    struct writer w = writer_of(t->samples, sizeof t->samples);
    s->n = t->line.n;
    s->has = TRD_IS_GIVEN;
    s->sample_n = t->line.sample_n;
    if (t->line.no_figures)
        return;
    s->has |= TRD_HAS_RANGE | TRD_HAS_MEAN;
    s->max.f = t->line.figure[0];
    s->min.f = t->line.figure[1];
    s->mean = t->line.figure[2];
    s->std = t->line.figure[3];
    for (uint32_t i = 0; i < t->line.sample_n; i++)
        put_f64(&w, t->line.sample[i]);
}

static int when_of(struct text_import *t, const struct text_name *name,
                   uint32_t site, struct trd_when *when)
{
    uint64_t step = name->step;
    if (name->pass == TRD_GRAD && words_count(t->stream.words, site, &step))
        return CTL_FAILED;
    when->step = when->iteration = step;
    when->microbatch = 1;
    when->labels = TRD_L_TEXT;
    if (name->pass == TRD_BACKWARD && name->io == TRD_OUTPUT)
        when->labels |= TRD_L_REPEATED;
    return 0;
}

static int send_line(struct text_import *t, const struct text_name *name,
                     int64_t us)
{
    struct wire_record r = {.dtype = TRD_TEXT, .samples = t->samples};
    int code = import_stream_start(&t->stream);
    if (code == 0)
        code = site_of(t, name, &r.site);
    if (code == 0)
        code = shape_of(t, &r.shape);
    if (code == 0)
        code = when_of(t, name, r.site, &r.when);
    if (code)
        return code;
    int64_t ns = clock_ns(&t->base, us) - t->stream.anchor_ns;
    r.t_ns = ns > 0 ? (uint64_t)ns : 0;
    figures_of(t, &r.stats);
    return import_stream_record(&t->stream, &r);
}

/* The script counts its calls from 1 once: a second start is another one's
 * log behind the first, and its steps will not mean what they seem to. */
static void watch_counter(struct text_import *t, uint64_t number)
{
    if (t->line.counter > 1 || t->counter <= 1) {
        if (t->line.counter > t->counter)
            t->counter = t->line.counter;
        return;
    }
    t->counter = t->line.counter;
    if (t->restarts++)
        return;
    ctl_fail(0,
             "%s:%llu: the count of calls starts again: this looks like "
             "several ranks or processes one after the other; all lines go "
             "to rank %llu, so export each one by --rank and import it by "
             "itself",
             t->path, (unsigned long long)number,
             (unsigned long long)t->result->rank);
}

static int take_line(struct text_import *t, uint64_t number, const char *line,
                     size_t n)
{
    struct text_name name;
    const char *why = "";
    size_t column = 1;
    int64_t of_day = clock_of_line(line, n);
    int64_t us = of_day >= 0 ? clock_next(&t->days, of_day) : 0;
    if (is_blank(line, n))
        return 0;
    if (text_parse(line, n, t->options->samples, &t->line, &why, &column)) {
        name_bad(t, number, column, why);
        return 0;
    }
    if (text_name(t->line.name, &name) || name.instance > UINT32_MAX) {
        name_bad(t, number, (size_t)(t->line.name.text - line) + 1,
                 "the name is not pass-Class-n-step-io or grad-parameter");
        return 0;
    }
    watch_counter(t, number);
    return send_line(t, &name, us);
}

static int read_records(struct text_import *t)
{
    struct lines l;
    const char *line;
    size_t n;
    int got = 0, too_long, code = 0;
    if (lines_open(&l, t->fd, t->size))
        return cannot(t, errno);
    while (code == 0 && (got = lines_next(&l, &line, &n, &too_long)) > 0) {
        if (too_long)
            name_bad(t, l.number, 1, "the line is longer than 2 MiB");
        else
            code = take_line(t, l.number, line, n);
    }
    int error = errno;
    if (code == 0 && got == 0 && l.hash != t->hash)
        code = ctl_fail(CTL_FAILED, "'%s' changed while it was read",
                        t->path);
    lines_close(&l);
    return got < 0 ? cannot(t, error) : code;
}

int import_text(const char *path, const struct import_daemon *daemon,
                const struct import_options *options,
                struct import_result *out)
{
    struct text_import *t = calloc(1, sizeof *t);
    struct stat st;
    int code = 0;
    if (!t)
        return ctl_fail(CTL_FAILED, "out of memory");
    t->path = path;
    t->options = options;
    t->result = out;
    t->stream.path = path;
    t->stream.daemon = daemon;
    t->stream.options = options;
    t->stream.result = out;
    t->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (t->fd < 0 || fstat(t->fd, &st)) {
        code = cannot(t, errno);
    } else {
        t->size = (uint64_t)st.st_size;
        t->mtime = st.st_mtime;
        code = read_days(t);
    }
    if (code == 0) {
        int64_t ns = clock_ns(&t->base, t->least_us);
        t->stream.anchor_ns = ns > 0 ? ns : 0;
        t->stream.epoch = import_epoch(t->hash, t->size, options, out);
        code = read_records(t);
    }
    if (code == 0)
        code = import_stream_finish(&t->stream);
    if (out->bad > BAD_SHOWN)
        fprintf(stderr, "%s: %llu more bad lines\n", path,
                (unsigned long long)(out->bad - BAD_SHOWN));
    import_stream_close(&t->stream);
    if (t->fd >= 0)
        close(t->fd);
    free(t);
    return code;
}
