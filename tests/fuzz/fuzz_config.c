/* The daemon's configuration file.
 *
 * Input: the file. What is taken is within the bounds that are promised; what
 * is not leaves all as it was, with a message that names the place. */
#include "tests/fuzz/fuzz.h"

#include "daemon/config.h"

static char path[64];
static int fd = -1;

static void open_file(void)
{
    fd = memfd_create("config", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
}

static void check_path(const char *text)
{
    FUZZ_CHECK(memchr(text, 0, PATH_MAX));
    FUZZ_CHECK(!*text || *text == '/');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct config before, after;
    static char error[CONFIG_ERROR_BYTES];

    if (fd < 0)
        open_file();
    FUZZ_CHECK(!ftruncate(fd, 0));
    FUZZ_CHECK(pwrite(fd, data, size, 0) == (ssize_t)size);
    config_init(&before);
    after = before;
    memset(error, 1, sizeof error);
    if (config_read(&after, path, error)) {
        FUZZ_CHECK(!memcmp(&before, &after, sizeof before));
        FUZZ_CHECK(memchr(error, 0, sizeof error) && strstr(error, path));
        return 0;
    }
    check_path(after.dir);
    check_path(after.data);
    FUZZ_CHECK(after.clients >= 1 && after.clients <= 16384);
    FUZZ_CHECK(after.memory_mb >= 8 && after.memory_mb <= 65536);
    FUZZ_CHECK(after.query_seconds >= 1 && after.query_seconds <= 86400);
    FUZZ_CHECK(after.queries >= 1 && after.queries <= 16);
    return 0;
}
