/* Where the runs are: -d, or what the daemon says. */
#include "tools/data_dir.h"

#include <stdio.h>
#include <string.h>

#include "tools/source.h"

int data_dir_find(const struct ctl *ctl, char *out, size_t cap)
{
    const struct cell *cells;
    struct source *s = NULL;
    struct query q;
    int code;
    out[0] = '\0';
    if (ctl->db) {
        snprintf(out, cap, "%s", ctl->db);
        return 0;
    }
    query_init(&q, QUERY_STATUS);
    code = source_open(ctl, "", &s);
    if (code == 0)
        code = source_ask(s, &q);
    while (code == 0 && source_row(s, &cells) > 0)
        if (cells[0].s.n == 4 && memcmp(cells[0].s.text, "data", 4) == 0)
            snprintf(out, cap, "%.*s", (int)cells[1].s.n, cells[1].s.text);
    source_close(s);
    return code;
}
