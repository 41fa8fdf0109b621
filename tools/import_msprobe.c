/* Importing dumps of msprobe.
 *
 * A rank is one stream: its dumps one after the other, by step. What a dump
 * does not say is settled so:
 * - the folder step0 is iteration 1; micro-batch is 1;
 * - a dump counts the calls of a module from 0, tracerd over the whole run:
 *   those of the dumps before are added, and a step that was not dumped is
 *   taken to have as many as the dump before it, or else the first one;
 * - objects of a class are numbered as they come; a function
 *   (Functional.linear) is an object of that class and path;
 * - parameters_grad is the gradient, and where a dump has several for a
 *   parameter, or the module was in a wrapper's "module", a local one of
 *   that micro-batch: msprobe sees gradients before they are added up;
 * - parameters are those of a module's first call in the dump;
 * - figures have label text: no hash, counts, std or samples. Gradients of
 *   inputs are a module's own share, label exact. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/import_stream.h"
#include "tools/modules.h"
#include "tools/msprobe.h"
#include "tools/msprobe_files.h"

enum { BAD_SHOWN = 20 /* bad entries named, the rest is counted */ };

struct dump {
    const char *path;
    int64_t step;
    const char *bytes;
    size_t n;
    int64_t mtime_ns;
};

/* Hashes of the names of a dump's entries. */
struct names {
    uint64_t *at;     /* 0: free */
    size_t n, room;   /* a power of two, or 0 */
};

struct probe_import {
    struct import_stream stream;
    struct modules *modules;
    struct names names;
    const struct dump *dump;   /* being read */
    const struct msprobe_entry *entry;
    const struct module *module; /* of the entry */
    struct import_result *result;
};

int import_is_msprobe(const char *path)
{
    char c = 0;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int is = fd >= 0 && fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
    for (off_t at = 0; fd >= 0 && !is && at < 256; at++) {
        if (pread(fd, &c, 1, at) != 1 || !strchr(" \t\r\n\xef\xbb\xbf", c)) {
            is = c == '{';
            break;
        }
    }
    if (fd >= 0)
        close(fd);
    return is;
}

/* ---- files ---- */

static int map_dump(struct dump *d, const struct msprobe_file *f)
{
    struct stat st = {.st_size = 0};
    void *bytes = MAP_FAILED;
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), code = 0;
    *d = (struct dump){.path = f->path, .step = f->step};
    if (fd < 0 || fstat(fd, &st))
        code = ctl_fail(CTL_FAILED, "cannot read '%s': %s", f->path,
                        ctl_errno(errno));
    else if (st.st_size == 0)
        code = ctl_fail(CTL_BAD, "%s:1: the dump is empty: msprobe writes it "
                                 "when its step ends",
                        f->path);
    else if ((bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE,
                           fd, 0)) == MAP_FAILED)
        code = ctl_fail(CTL_FAILED, "cannot read '%s': %s", f->path,
                        ctl_errno(errno));
    if (fd >= 0)
        close(fd);
    if (code)
        return code;
    d->bytes = bytes;
    d->n = (size_t)st.st_size;
    d->mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 +
                  st.st_mtim.tv_nsec;
    return 0;
}

static void unmap_dump(struct dump *d)
{
    if (d->bytes)
        munmap((void *)(uintptr_t)d->bytes, d->n);
    d->bytes = NULL;
}

/* ---- what is wrong ---- */

/* As it stands in the file, but for what a terminal would obey. */
static void put_key(struct slice key)
{
    size_t n = key.n > 400 ? 400 : key.n;
    bool text = msprobe_is_utf8(key);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)key.text[i];
        fputc(c < 0x20 || c == 0x7f || (c >= 0x80 && !text) ? '?' : c,
              stderr);
    }
}

static void name_bad(struct probe_import *p, uint64_t line, struct slice key,
                     const char *path, const char *why)
{
    if (++p->result->bad > BAD_SHOWN)
        return;
    fflush(stdout);
    fprintf(stderr, "%s:%llu: ", p->dump->path, (unsigned long long)line);
    put_key(key);
    fprintf(stderr, "%s%s%s%s\n", key.n && *path ? "." : "", path,
            key.n ? ": " : "", why);
}

static void take_bad(void *to, const char *path, const char *why)
{
    struct probe_import *p = to;
    name_bad(p, p->entry->line, p->entry->key, path, why);
}

/* ---- records ---- */

static int path_of(const struct msprobe_name *name, struct slice tensor,
                   char out[TRD_MAX_NAME + 1])
{
    int n = snprintf(out, TRD_MAX_NAME + 1, "%.*s%s%.*s",
                     (int)name->module.n, name->module.text,
                     name->module.n ? "." : "", (int)tensor.n, tensor.text);
    return n < 0 || n > TRD_MAX_NAME;
}

static int site_of(struct probe_import *p, const struct msprobe_tensor *t,
                   uint32_t *id)
{
    const struct msprobe_name *name = &p->entry->name;
    const struct wire_object object = {p->module->instance, name->class_name,
                                       name->module};
    struct wire_site site = {.pass = (uint32_t)t->pass,
                             .io = (uint32_t)t->io,
                             .position = t->position, .path = t->path};
    char path[TRD_MAX_NAME + 1];
    int code;
    if (t->pass == TRD_GRAD || t->pass == TRD_PARAM) {
        if (path_of(name, t->path, path))
            return ctl_fail(CTL_BAD, "a name is too long");
        site.io = TRD_IO_NONE;
        site.position = 0;
        site.path = slice_of(path);
    }
    code = words_object(p->stream.words, &object, &site.object);
    return code ? code : words_site(p->stream.words, &site, id);
}

static struct trd_when when_of(const struct probe_import *p,
                               const struct msprobe_tensor *t)
{
    const struct msprobe_name *name = &p->entry->name;
    uint64_t iteration = (uint64_t)p->dump->step + 1;
    struct trd_when w = {.step = iteration, .iteration = iteration,
                         .microbatch = 1, .labels = TRD_L_TEXT};
    if (t->pass == TRD_FORWARD || t->pass == TRD_BACKWARD)
        w.step = p->module->before + name->call + 1;
    if (t->pass == TRD_GRAD && (p->module->grads > 1 || name->wrapped)) {
        w.labels |= TRD_L_LOCAL;
        w.microbatch = (uint32_t)name->call + 1;
    }
    if (t->pass == TRD_BACKWARD && t->io == TRD_OUTPUT)
        w.labels |= TRD_L_EXACT;
    if (t->dtype == TRD_OPAQUE)
        w.labels |= TRD_L_UNSUPPORTED;
    return w;
}

static int take_tensor(void *to, const struct msprobe_tensor *t)
{
    struct probe_import *p = to;
    struct wire_record r = {.dtype = t->dtype, .stats = t->stats};
    int64_t ns = p->dump->mtime_ns - p->stream.anchor_ns;
    int code;
    if (t->pass == TRD_PARAM && p->entry->name.call)
        return 0;
    code = import_stream_start(&p->stream);
    if (code == 0)
        code = site_of(p, t, &r.site);
    if (code == 0)
        code = words_shape(p->stream.words, &t->shape, &r.shape);
    if (code)
        return code;
    r.when = when_of(p, t);
    r.t_ns = (ns > 0 ? (uint64_t)ns : 0) + p->stream.seq;
    return import_stream_record(&p->stream, &r);
}

/* ---- a dump ---- */

static void put_name(struct names *s, uint64_t hash)
{
    size_t i = (size_t)(hash >> 32) & (s->room - 1);
    while (s->at[i])
        i = (i + 1) & (s->room - 1);
    s->at[i] = hash;
    s->n++;
}

static int grow_names(struct names *s)
{
    struct names more = {NULL, 0, s->room ? 2 * s->room : 256};
    more.at = calloc(more.room, sizeof *more.at);
    if (!more.at)
        return ctl_fail(CTL_FAILED, "out of memory");
    for (size_t i = 0; i < s->room; i++)
        if (s->at[i])
            put_name(&more, s->at[i]);
    free(s->at);
    *s = more;
    return 0;
}

static void drop_names(struct names *s)
{
    free(s->at);
    *s = (struct names){NULL, 0, 0};
}

/* Was there an entry of that name in this dump? */
static int take_name(struct names *s, struct slice key, bool *twice)
{
    uint64_t hash = import_mix(UINT64_C(0xcbf29ce484222325), key.text, key.n);
    hash += !hash;
    *twice = false;
    if (2 * s->n >= s->room && grow_names(s))
        return CTL_FAILED;
    for (size_t i = (size_t)(hash >> 32) & (s->room - 1); s->at[i];
         i = (i + 1) & (s->room - 1))
        if (s->at[i] == hash) {
            *twice = true;
            return 0;
        }
    put_name(s, hash);
    return 0;
}

/* Calls take for each entry with a name; told: also what is wrong. */
static int each_entry(struct probe_import *p, bool told,
                      int (*take)(struct probe_import *p))
{
    static const struct slice none = {"", 0};
    struct msprobe m;
    struct msprobe_entry e;
    bool named;
    int got = msprobe_open(&m, p->dump->bytes, p->dump->n), code = 0;
    p->entry = &e;
    while (got >= 0 && !code && (got = msprobe_next(&m, &e, &named)) > 0) {
        if (named)
            code = take(p);
        else if (told)
            name_bad(p, e.line, e.key, "",
                     "the name is not Module.PATH.CLASS.forward.N, backward "
                     "or parameters_grad, or FUNCTION.N.forward");
    }
    if (got < 0 && told)
        name_bad(p, m.line, none, "", m.why);
    return code;
}

static int count_entry(struct probe_import *p)
{
    const struct msprobe_name *name = &p->entry->name;
    struct module *m;
    int code = modules_find(p->modules, name->class_name, name->module, &m);
    if (code == 0)
        modules_count(p->modules, m, name->pass == TRD_GRAD, name->call + 1);
    return code;
}

static int send_entry(struct probe_import *p)
{
    const struct msprobe_name *name = &p->entry->name;
    const struct msprobe_take take = {take_tensor, take_bad, p};
    struct module *m;
    bool twice;
    int code = modules_find(p->modules, name->class_name, name->module, &m);
    if (code == 0)
        code = take_name(&p->names, p->entry->key, &twice);
    if (code)
        return code;
    if (twice) {
        take_bad(p, "", "the name is there twice: the first counts");
        return 0;
    }
    p->module = m;
    return msprobe_tensors(p->entry, &take);
}

static int import_dump(struct probe_import *p, const struct dump *d)
{
    int code;
    p->dump = d;
    code = each_entry(p, false, count_entry);
    modules_next(p->modules, (uint64_t)d->step);
    if (code == 0)
        code = each_entry(p, true, send_entry);
    drop_names(&p->names);
    return code;
}

/* ---- ranks ---- */

/* The stream's identity needs all of its files. */
static int read_identity(struct probe_import *p,
                         const struct msprobe_file *files, size_t n)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325), size = 0;
    for (size_t i = 0; i < n; i++) {
        struct dump d;
        int code = map_dump(&d, &files[i]);
        if (code)
            return code;
        hash = import_mix(hash, &d.step, sizeof d.step);
        hash = import_mix(hash, d.bytes, d.n);
        size += d.n;
        if (i == 0 || d.mtime_ns < p->stream.anchor_ns)
            p->stream.anchor_ns = d.mtime_ns > 0 ? d.mtime_ns : 0;
        unmap_dump(&d);
    }
    p->stream.epoch =
        import_epoch(hash, size, p->stream.options, p->result);
    return 0;
}

static int import_rank(const struct msprobe_file *files, size_t n,
                       const struct import_daemon *daemon,
                       const struct import_options *options,
                       struct import_result *out)
{
    struct probe_import *p = calloc(1, sizeof *p);
    int code = p ? modules_open(&p->modules) : CTL_FAILED;
    if (!p)
        return ctl_fail(CTL_FAILED, "out of memory");
    p->result = out;
    p->stream.path = files[0].path;
    p->stream.daemon = daemon;
    p->stream.options = options;
    p->stream.result = out;
    if (code == 0)
        code = read_identity(p, files, n);
    for (size_t i = 0; i < n && code == 0; i++) {
        struct dump d;
        code = map_dump(&d, &files[i]);
        if (code == 0)
            code = import_dump(p, &d);
        unmap_dump(&d);
    }
    if (code == 0)
        code = import_stream_finish(&p->stream);
    if (out->bad > BAD_SHOWN)
        fprintf(stderr, "%s: %llu more bad entries\n", files[0].path,
                (unsigned long long)(out->bad - BAD_SHOWN));
    import_stream_close(&p->stream);
    modules_close(p->modules);
    free(p);
    return code;
}

int import_msprobe(const char *path, const struct import_daemon *daemon,
                   const struct import_options *options,
                   void (*done)(void *to, const struct import_result *r),
                   void *to)
{
    struct msprobe_files f;
    int code = msprobe_files_find(path, &f), worst = 0;
    if (code)
        return code;
    if (options->rank >= 0 && f.at[0].rank != f.at[f.n - 1].rank) {
        msprobe_files_free(&f);
        return ctl_fail(CTL_BAD, "'%s' has dumps of several ranks: --rank is "
                                 "for one",
                        path);
    }
    for (size_t i = 0, n; i < f.n && !ingest_stop; i += n) {
        struct import_result r = {.rank = (uint64_t)f.at[i].rank};
        for (n = 1; i + n < f.n && f.at[i + n].rank == f.at[i].rank;)
            n++;
        if (options->rank >= 0)
            r.rank = (uint64_t)options->rank;
        if (options->attempt > 0)
            r.attempt = (uint64_t)options->attempt;
        code = import_rank(f.at + i, n, daemon, options, &r);
        worst = code > worst ? code : worst;
        if (code == 0)
            done(to, &r);
    }
    msprobe_files_free(&f);
    return worst;
}
