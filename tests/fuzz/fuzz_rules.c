/* The map's and the rules' file of a comparison.
 *
 * Input: a byte that says which, then the file. What is refused is told with
 * the file's name; what is taken can be asked for every object and record.
 * The runs are two of the target's own. */
#include "tests/fuzz/fuzz.h"

#include <stdarg.h>

#include "tools/align.h"
#include "tools/rules.h"
#include "tools/tracectl.h"

enum { OBJECTS = 6, PATHS = 5 };

struct scan {
    struct scan_object object[OBJECTS];
    const char *path[PATHS];
};

static const struct scan one = {
    {{0, "GPT", "", 1},
     {1, "Block", "blocks.0", 1},
     {2, "Block", "blocks.1", 2},
     {3, "Linear", "blocks.0.mlp.up", 1},
     {4, "Linear", "blocks.1.mlp.up", 2},
     {5, "aaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaa", 1}},
    {"0", "blocks.0.mlp.up.weight", "head.bias", "a", ""}};
static const struct scan other = {
    {{0, "GPT", "", 1},
     {1, "Layer", "layers.0", 1},
     {2, "Layer", "layers.1", 2},
     {3, "FSDPLinear", "layers.0.ffn.up", 1},
     {4, "Linear", "module.layers.1.ffn.up", 2},
     {5, "Linear", "", 3}},
    {"0", "layers.0.ffn.up.weight", "lm_head.bias", "b", ""}};

/* ---- what the files read use of tracectl ---- */

static char said[1024];

int ctl_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(said, sizeof said, format, args);
    va_end(args);
    return code;
}

const char *ctl_errno(int error)
{
    return strerror(error);
}

const struct scan_object *scan_objects(const struct scan *s, size_t *n)
{
    *n = OBJECTS;
    return s->object;
}

const char *scan_path(const struct scan *s, int64_t path)
{
    return path >= 0 && path < PATHS ? s->path[path] : NULL;
}

const char *scan_path_at(const struct scan *s, size_t i, int64_t *path)
{
    *path = (int64_t)i;
    return scan_path(s, *path);
}

/* ---- the files ---- */

static void check_map(const char *file)
{
    struct align *m = NULL;
    if (align_open(&one, &other, file, &m)) {
        FUZZ_CHECK(!m && strstr(said, file));
        return;
    }
    for (size_t i = 0; i < OBJECTS; i++) {
        long there = align_object(m, i);
        FUZZ_CHECK(there >= -1 && there < OBJECTS);
        FUZZ_CHECK(there < 0 || align_back(m, (size_t)there) == (long)i);
    }
    for (int64_t i = 0; i <= PATHS; i++) {
        int64_t there = align_path(m, i);
        FUZZ_CHECK(there >= -1 && there < PATHS);
    }
    align_close(m);
}

static void check_rules(const char *file)
{
    struct rules *r = NULL;
    if (rules_open(file, &r)) {
        FUZZ_CHECK(strstr(said, file));
        rules_close(r);
        return;
    }
    for (size_t i = 0; i <= OBJECTS; i++) {
        struct compare_pair p = {.object = i, .step = 1};
        struct diff_side x = {.has = 0}, y = {.has = 0};
        p.diff.kind = DIFF_NEAR;
        p.diff.error = 8;
        rules_apply(r, &one, &p, &x, &y);
        FUZZ_CHECK(p.diff.error >= 0);
    }
    rules_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char path[64];
    static int fd = -1;

    if (fd < 0) {
        fd = memfd_create("rules", MFD_CLOEXEC);
        FUZZ_CHECK(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (size == 0)
        return 0;
    FUZZ_CHECK(!ftruncate(fd, 0));
    FUZZ_CHECK(pwrite(fd, data + 1, size - 1, 0) == (ssize_t)(size - 1));
    if (*data % 2)
        check_map(path);
    else
        check_rules(path);
    return 0;
}
