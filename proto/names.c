/* Words for codes: errors, dtypes, passes, labels, reasons, causes. */
#include <string.h>

#include "proto/wire.h"
#include "tracerd/client.h"

const char *trd_version(void)
{
    return TRD_VERSION;
}

const char *trd_strerror(int code)
{
    switch (code) {
    case TRD_OK:
        return "success";
#define ERROR_CASE(name, number, text)                                        \
    case number:                                                              \
        return text;
        TRD_ERRORS(ERROR_CASE)
#undef ERROR_CASE
    default:
        return "unknown error";
    }
}

const char *trd_pass_name(int pass)
{
    switch (pass) {
#define PASS_CASE(name, number, text)                                         \
    case number:                                                              \
        return text;
        TRD_PASSES(PASS_CASE)
#undef PASS_CASE
    default:
        return NULL;
    }
}

const char *trd_sampling_name(int sampling)
{
    switch (sampling) {
#define SAMPLING_CASE(name, code, text)                                       \
    case code:                                                                \
        return text;
        TRD_SAMPLINGS(SAMPLING_CASE)
#undef SAMPLING_CASE
    default:
        return NULL;
    }
}

const char *trd_histogram_name(int kind)
{
    switch (kind) {
#define HISTOGRAM_CASE(name, code, text)                                      \
    case code:                                                                \
        return text;
        TRD_HISTOGRAMS(HISTOGRAM_CASE)
#undef HISTOGRAM_CASE
    default:
        return NULL;
    }
}

const char *trd_label_name(unsigned bit)
{
    switch (bit) {
#define LABEL_CASE(name, number, text)                                        \
    case number:                                                              \
        return text;
        TRD_LABELS(LABEL_CASE)
#undef LABEL_CASE
    default:
        return NULL;
    }
}

static const struct {
    const char *name;
    unsigned bytes;
    int kind;
} dtypes[TRD_DTYPE_LIMIT] = {
#define DTYPE_ROW(name, number, text, size, kind) [number] = {text, size, kind},
    TRD_DTYPES(DTYPE_ROW)
#undef DTYPE_ROW
};

static int dtype_known(int dtype)
{
    return dtype > 0 && dtype < TRD_DTYPE_LIMIT;
}

const char *trd_dtype_name(int dtype)
{
    return dtype_known(dtype) ? dtypes[dtype].name : NULL;
}

unsigned trd_dtype_bytes(int dtype)
{
    return dtype_known(dtype) ? dtypes[dtype].bytes : 0;
}

int trd_dtype_kind(int dtype)
{
    return dtype_known(dtype) ? dtypes[dtype].kind : -1;
}

int trd_dtype_parse(const char *name)
{
    for (int i = 1; name && i < TRD_DTYPE_LIMIT; i++)
        if (!strcmp(name, dtypes[i].name))
            return i;
    return 0;
}

const char *wire_reason_name(unsigned reason)
{
    switch (reason) {
#define REASON_CASE(name, number, text)                                       \
    case number:                                                              \
        return text;
        WIRE_REASONS(REASON_CASE)
#undef REASON_CASE
    default:
        return NULL;
    }
}

const char *wire_cause_name(unsigned cause)
{
    static const char *const names[] = {
#define CAUSE_NAME(name, text) text,
        TRD_CAUSES(CAUSE_NAME)
#undef CAUSE_NAME
    };
    return cause < TRD_CAUSE_COUNT ? names[cause] : NULL;
}
