/* Reading files of rules. */
#include "tools/rule_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tracectl.h"

static const char blank[] = " \t\r\n";

char *rule_word(struct rule_line *line)
{
    return strtok_r(NULL, blank, &line->rest);
}

/* The bytes of a file and a NUL, to be freed; NULL: *code, told. */
static char *read_text(const char *file, int *code)
{
    char *text = malloc(RULE_FILE_BYTES + 1);
    FILE *f;
    size_t n = 0;
    if (!text) {
        *code = ctl_fail(CTL_FAILED, "out of memory");
        return NULL;
    }
    f = fopen(file, "re");
    if (!f)
        *code = ctl_fail(CTL_BAD, "cannot open '%s': %s", file,
                         ctl_errno(errno));
    else if ((n = fread(text, 1, RULE_FILE_BYTES + 1, f)) > RULE_FILE_BYTES)
        *code = ctl_fail(CTL_BAD, "'%s' is larger than 4 MiB", file);
    else if (ferror(f))
        *code = ctl_fail(CTL_BAD, "cannot read '%s': %s", file,
                         ctl_errno(errno));
    else if (memchr(text, '\0', n))
        *code = ctl_fail(CTL_BAD, "'%s' is not text: it has a NUL byte", file);
    if (f)
        fclose(f);
    if (*code) {
        free(text);
        return NULL;
    }
    text[n] = '\0';
    return text;
}

int rule_file_read(const char *file,
                   int (*take)(void *to, char *word, struct rule_line *line),
                   void *to)
{
    struct rule_line line = {.file = file};
    int code = 0;
    char *text = read_text(file, &code), *next = text;
    while (code == 0 && next) {
        char *at = strsep(&next, "\n"), *word;
        line.number++;
        at[strcspn(at, "#")] = '\0';
        word = strtok_r(at, blank, &line.rest);
        if (word)
            code = take(to, word, &line);
    }
    free(text);
    return code;
}
