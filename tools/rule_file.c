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

int rule_file_read(const char *file,
                   int (*take)(void *to, char *word, struct rule_line *line),
                   void *to)
{
    struct rule_line line = {.file = file};
    char *text = NULL;
    size_t room = 0;
    int code = 0;
    FILE *f = fopen(file, "re");
    if (!f)
        return ctl_fail(CTL_BAD, "cannot open '%s': %s", file,
                        ctl_errno(errno));
    while (code == 0 && getline(&text, &room, f) >= 0) {
        char *word;
        line.number++;
        text[strcspn(text, "#")] = '\0';
        word = strtok_r(text, blank, &line.rest);
        if (word)
            code = take(to, word, &line);
    }
    if (code == 0 && ferror(f))
        code = ctl_fail(CTL_FAILED, "cannot read '%s': %s", file,
                        ctl_errno(errno));
    fclose(f);
    free(text);
    return code;
}
