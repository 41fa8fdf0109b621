/* Files of words: a rule a line; empty lines and what follows `#` are left
 * out. */
#ifndef TOOLS_RULE_FILE_H
#define TOOLS_RULE_FILE_H

struct rule_line {
    const char *file;
    unsigned long number;
    char *rest; /* of the line, for rule_word() */
};

enum {
    RULE_FILE_MAX = 4096,             /* lines with a rule */
    RULE_FILE_BYTES = 4 * 1024 * 1024 /* of the whole file, which is text */
};

/* Calls take() with the first word of each line that has one, until that
 * gives an exit code. 0 or an exit code, told. */
int rule_file_read(const char *file,
                   int (*take)(void *to, char *word, struct rule_line *line),
                   void *to);
/* The next word of the line; NULL: there is none. */
char *rule_word(struct rule_line *line);

#endif
