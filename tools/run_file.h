/* The file of one run, and a directory of them. */
#ifndef TOOLS_RUN_FILE_H
#define TOOLS_RUN_FILE_H

#include <sqlite3.h>
#include <stddef.h>
#include <stdint.h>

/* Tells "cannot open 'path': why". The result is CTL_FAILED. */
int run_file_bad(const char *path, const char *why);

/* Opens the file read-only and checks that it is a run this program can
 * read. 0 or CTL_FAILED, told. */
int run_file_open(const char *path, sqlite3 **out);

/* The number a statement asks for; 0 where there is none, or it fails. */
int64_t run_file_ask(sqlite3 *db, const char *sql);

/* When the run began, as its file says; INT64_MIN for no run. */
int64_t run_file_created(const char *path);

/* The names of the files in a directory that may be runs, sorted; free with
 * run_dir_free(). 0 or CTL_FAILED, told. */
int run_dir_list(const char *dir, char ***out, size_t *n);
void run_dir_free(char **files, size_t n);
/* dir/name, to be freed; NULL without memory. */
char *run_dir_join(const char *dir, const char *name);
/* The path of the run called so, "" for the newest; *out NULL: there is none.
 * 0 or an exit code, told. */
int run_dir_find(const char *dir, const char *run, char **out);

#endif
