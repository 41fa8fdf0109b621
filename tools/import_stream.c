/* What imports of a text and of a dump have in common: telling the daemon. */
#include "tools/import_stream.h"

#include <stdio.h>
#include <unistd.h>

enum { INFO_MAX = 1024 };

uint64_t import_mix(uint64_t h, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

static uint64_t mix_number(uint64_t h, uint64_t v)
{
    uint8_t bytes[8];
    struct writer w = writer_of(bytes, sizeof bytes);
    put_u64(&w, v);
    return import_mix(h, bytes, sizeof bytes);
}

uint64_t import_epoch(uint64_t hash, uint64_t size,
                      const struct import_options *o,
                      const struct import_result *r)
{
    uint64_t h = mix_number(hash, size);
    h = import_mix(h, o->run, strlen(o->run));
    h = mix_number(h, r->rank);
    h = mix_number(h, r->attempt);
    h = mix_number(h, o->samples);
    h ^= h >> 31;
    h *= UINT64_C(0x9e3779b97f4a7c15);
    h ^= h >> 29;
    h >>= 1; /* an epoch has 63 bits */
    return h ? h : 1;
}

/* The file's name as the value of a JSON string. */
static void info_of(const char *path, char out[INFO_MAX])
{
    const char *slash = strrchr(path, '/');
    size_t n = (size_t)snprintf(out, INFO_MAX, "{\"imported\":\"");
    for (const char *p = slash ? slash + 1 : path; *p && n < INFO_MAX - 16;
         p++) {
        unsigned char b = (unsigned char)*p;
        if (b == '"' || b == '\\')
            out[n++] = '\\';
        out[n++] = b < 0x20 ? '?' : (char)b;
    }
    snprintf(out + n, INFO_MAX - n, "\"}");
}

int import_stream_start(struct import_stream *s)
{
    char host[256] = "", info[INFO_MAX];
    const struct import_options *o = s->options;
    const char *dir;
    int code = s->in ? 0 : s->daemon->find(s->daemon->context, &dir);
    if (s->in || code)
        return code;
    gethostname(host, sizeof host - 1);
    info_of(s->path, info);
    const struct hello h = {.version_min = WIRE_VERSION,
                            .version_max = WIRE_VERSION,
                            .rank = (uint32_t)s->result->rank,
                            .attempt = (uint32_t)s->result->attempt,
                            .pid = (uint32_t)getpid(),
                            .real_ns = (uint64_t)s->anchor_ns,
                            .first_seq = 1,
                            .max_len = FRAME_MAX_BYTES,
                            .run = slice_of(o->run),
                            .job = slice_of("import"),
                            .host = slice_of(host),
                            .client = slice_of("tracectl " TRD_VERSION),
                            .journal = slice_of(""),
                            .info = slice_of(info)};
    code = ingest_open(dir, &h, s->epoch, &s->in);
    if (code)
        return code;
    const struct welcome *w = ingest_welcome(s->in);
    snprintf(s->result->run, sizeof s->result->run, "%.*s", (int)w->run.n,
             w->run.text);
    return words_open(s->in, &s->words);
}

int import_stream_record(struct import_stream *s, const struct wire_record *r)
{
    struct writer w = writer_of(s->entry + ENTRY_HEADER_BYTES,
                                sizeof s->entry - ENTRY_HEADER_BYTES);
    if (record_put(&w, r))
        return ctl_fail(CTL_BAD, "a record is too long");
    uint64_t seq = ++s->seq;
    uint32_t len = (uint32_t)(w.at - s->entry);
    struct writer head = writer_of(s->entry, 4);
    put_u32(&head, entry_seal(s->entry, ENTRY_RECORD, len, (uint32_t)seq));
    return ingest_record(s->in, seq, s->entry, len);
}

int import_stream_finish(struct import_stream *s)
{
    if (!s->in)
        return 0;
    uint64_t before = ingest_welcome(s->in)->committed_seq;
    s->result->records += s->seq;
    s->result->fresh += s->seq > before ? s->seq - before : 0;
    return ingest_finish(s->in, s->seq, 0);
}

void import_stream_close(struct import_stream *s)
{
    words_close(s->words);
    ingest_close(s->in);
    s->words = NULL;
    s->in = NULL;
}
