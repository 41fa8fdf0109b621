/* Log lines: `time level event key=value ...`, one a line, to stderr or to
 * a file of bounded size. Any thread. */
#ifndef DAEMON_LOG_H
#define DAEMON_LOG_H

#include <stddef.h>

#define LOG_FORMAT __attribute__((format(printf, 2, 3)))

/* Until this is called, lines go to stderr. The file is private to the
 * user; when it grows over 4 MiB it becomes PATH.old. 0 or -errno. */
int log_open(const char *path);
void log_close(void);

/* event is a word; the rest is key=value pairs. Control characters, which
 * may come from a peer, are printed as '?'. A line about something that
 * failed says at its end what happens instead (then="..."). */
void log_info(const char *event, const char *format, ...) LOG_FORMAT;
void log_warn(const char *event, const char *format, ...) LOG_FORMAT;
void log_error(const char *event, const char *format, ...) LOG_FORMAT;

#endif
