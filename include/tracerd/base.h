/* What every public header of tracerd needs: visibility, version, errors.
 *
 * Conventions of the whole C interface
 * - Functions that can fail return 0 or a negative TRD_E code; out-parameters
 *   come last and are untouched on failure.
 * - Strings are NUL-terminated UTF-8, copied before the call returns unless
 *   the declaration says otherwise.
 * - Each declaration ends with Threads / Blocks / Owns / Errors. */
#ifndef TRACERD_BASE_H
#define TRACERD_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#error "tracerd runs on POSIX systems"
#elif defined(__GNUC__)
#define TRD_API __attribute__((visibility("default")))
#else
#define TRD_API
#endif

#define TRD_VERSION_MAJOR 0
#define TRD_VERSION_MINOR 1
#define TRD_VERSION_PATCH 0
#define TRD_VERSION "0.1.0"

/* X(name, code, text): every error of every room. Codes never change. */
#define TRD_ERRORS(X)                                                         \
    X(TRD_EINVAL, -1, "an argument is out of range or of the wrong form")     \
    X(TRD_ENOMEM, -2, "out of memory")                                        \
    X(TRD_EFULL, -3, "the journal is full; the record was dropped")           \
    X(TRD_ELIMIT, -4, "a named limit was exceeded")                           \
    X(TRD_ETRUNC, -5, "the data ends too early")                              \
    X(TRD_ECORRUPT, -6, "a checksum or a structure does not hold")            \
    X(TRD_EVERSION, -7, "the other side speaks another version")              \
    X(TRD_EUNSUPPORTED, -8, "not supported for this dtype or device")         \
    X(TRD_ECLOSED, -9, "the client is closed, or this is a forked child")     \
    X(TRD_ETIMEDOUT, -10, "not done within the time limit")                   \
    X(TRD_ENOTFOUND, -11, "nothing found")                                    \
    X(TRD_EIO, -12, "the operating system refused")                           \
    X(TRD_EACCES, -13, "the directory or socket is not private to this user") \
    X(TRD_EPATH, -14, "the socket path is longer than 107 bytes")             \
    X(TRD_EBUSY, -15, "someone else holds it")                                \
    X(TRD_ENAME, -16, "the name does not follow the grammar")                 \
    X(TRD_EREFUSED, -17, "the daemon refused this run")                       \
    X(TRD_ENODATA, -18, "the tensor has elements but no readable memory")     \
    X(TRD_ENODAEMON, -19, "nobody listens on the socket")

enum trd_error {
    TRD_OK = 0,
#define TRD_ERROR_MEMBER(name, code, text) name = code,
    TRD_ERRORS(TRD_ERROR_MEMBER)
#undef TRD_ERROR_MEMBER
};

/* The text of an error code; "unknown error" for any other number.
 * Threads: any. Blocks: never. Owns: static memory. Errors: none. */
TRD_API const char *trd_strerror(int code);

/* The version of the linked library, "major.minor.patch".
 * Threads: any. Blocks: never. Owns: static memory. Errors: none. */
TRD_API const char *trd_version(void);

#ifdef __cplusplus
}
#endif
#endif
