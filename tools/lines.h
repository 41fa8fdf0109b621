/* Lines of a file of any size, in bounded memory, with a hash of its bytes. */
#ifndef TOOLS_LINES_H
#define TOOLS_LINES_H

#include <stddef.h>
#include <stdint.h>

enum { LINES_MAX_BYTES = 2 * 1024 * 1024 };

struct lines {
    int fd;
    uint64_t left;    /* bytes of the file still to read */
    uint64_t number;  /* of the current line, from 1 */
    uint64_t hash;    /* of the bytes read so far */
    char *bytes;
    size_t at, n;     /* unread part of bytes */
    int skipping;     /* the rest of a line that was too long */
};

/* Reads size bytes of fd from its start. 0 or TRD_ENOMEM, TRD_EIO. */
int lines_open(struct lines *l, int fd, uint64_t size);
/* 1: the next line, without LF; a byte order mark at the start of the file
 * is left off. *too_long: only its start is given. 0: the end. -1: errno. */
int lines_next(struct lines *l, const char **line, size_t *n, int *too_long);
void lines_close(struct lines *l);

#endif
