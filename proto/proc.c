/* Reading the text of two files of /proc. Pure. */
#include "proto/proc.h"

#include <stdlib.h>
#include <string.h>

#include "tracerd/base.h"

enum { STAT_STATE = 3, STAT_START_TIME = 22, BOOT_ID_DIGITS = 32 };

/* Field n; the name in field 2 may hold spaces and brackets, so they are
 * counted from the last one. */
static const char *field(const char *text, int n)
{
    const char *p = strrchr(text, ')');
    for (int i = 2; p && i < n; i++) {
        p = strchr(p, ' ');
        if (p)
            p++;
    }
    return p;
}

int proc_stat(const char *text, char *state, uint64_t *start_time)
{
    const char *s = field(text, STAT_STATE);
    const char *t = field(text, STAT_START_TIME);
    if (!s || !t)
        return TRD_ECORRUPT;
    *state = *s;
    *start_time = strtoull(t, NULL, 10);
    return 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

void proc_boot_id(const char *text, uint8_t out[16])
{
    unsigned digits = 0;
    memset(out, 0, 16);
    for (; *text && digits < BOOT_ID_DIGITS; text++) {
        int v = hex_digit(*text);
        if (v < 0) /* the dashes */
            continue;
        out[digits / 2] = (uint8_t)(out[digits / 2] << 4 | v);
        digits++;
    }
}
