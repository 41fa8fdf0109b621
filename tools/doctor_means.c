/* The doctor's look at room, limits, Python and the GPU's half. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/journal.h"
#include "proto/place.h"
#include "tools/doctor.h"

#define SAY(d, check, state, mend, ...)                                       \
    doctor_say(d, check, DOCTOR_##state, mend, __VA_ARGS__)
#define MIB(v) ((unsigned long long)(v) >> 20)

enum {
    RING_BYTES = 32 << 20,  /* of a journal, where nobody asked for another */
    JOURNALS_FEW = 8,       /* a node's GPUs */
    DATA_BYTES = 256 << 20, /* with less a long run does not go far */
    FILES_FEW = 1100,       /* as many clients as the daemon takes */
    LINE_BYTES = 4096
};

/* Free bytes where path is or will be, and those of the whole disk; 0:
 * unknown. */
static uint64_t free_bytes(const char *path, uint64_t *all)
{
    char part[DOCTOR_PATH];
    struct statvfs v;
    snprintf(part, sizeof part, "%s", path);
    while (statvfs(part, &v) != 0) {
        char *slash = strrchr(part, '/');
        if (!slash || slash == part)
            return 0;
        *slash = '\0';
    }
    *all = (uint64_t)v.f_blocks * v.f_frsize;
    return (uint64_t)v.f_bavail * v.f_frsize;
}

static void journal_room(struct doctor *d)
{
    static const char mend[] =
        "mount -o remount,size=2g /dev/shm (docker run --shm-size=2g), or "
        "export TRACERD_DIR=/a/directory/with/room";
    struct journal_head h = {0};
    uint64_t all, room = free_bytes(d->dir, &all), n;
    if (!*d->dir || !room || journal_layout(RING_BYTES, &h))
        return;
    n = room / h.size;
    if (n < 2)
        SAY(d, "room", BAD, mend,
            "%llu MiB free in '%s', and the journal of each process takes "
            "%llu MiB: the others keep records in memory that a kill takes "
            "along",
            MIB(room), d->dir, MIB(h.size));
    else
        doctor_say(d, "room", n < JOURNALS_FEW ? DOCTOR_NOTE : DOCTOR_OK,
                   n < JOURNALS_FEW ? mend : "",
                   "%llu MiB free in '%s': room for the journals of %llu "
                   "processes",
                   MIB(room), d->dir, (unsigned long long)n);
}

/* As the daemon sees it, see place_reserve(): its reserve may be there. */
static void data_room(struct doctor *d)
{
    static const char mend[] =
        "remove or move away runs you do not need, or export "
        "TRACERD_DATA=/a/directory/with/room";
    char reserve[DOCTOR_PATH + 16];
    uint64_t all = 0, margin, room = *d->data ? free_bytes(d->data, &all) : 0;
    uint64_t least = place_reserve(all, &margin);
    if (!*d->data)
        return;
    snprintf(reserve, sizeof reserve, "%s/" PLACE_RESERVE, d->data);
    least = margin + (access(reserve, F_OK) == 0 ? 0 : least);
    if (room < least)
        SAY(d, "disk", BAD, mend,
            "%llu MiB free in '%s': with less than %llu MiB nothing is stored",
            MIB(room), d->data, MIB(least) + 1);
    else
        doctor_say(d, "disk", room < DATA_BYTES ? DOCTOR_NOTE : DOCTOR_OK,
                   room < DATA_BYTES ? mend : "", "%llu MiB free in '%s'",
                   MIB(room), d->data);
}

void doctor_room(struct doctor *d)
{
    journal_room(d);
    data_room(d);
}

void doctor_limits(struct doctor *d)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) != 0)
        return;
    if (l.rlim_max != RLIM_INFINITY && l.rlim_max < FILES_FEW)
        SAY(d, "files", BAD, "ulimit -Hn 4096 (as root), or a lower clients "
                             "in tracerd's configuration",
            "at most %llu open files: fewer than the 1024 clients a tracerd "
            "takes",
            (unsigned long long)l.rlim_max);
    else
        SAY(d, "files", OK, "", "enough open files");
}

/* ---- Python and the GPU ---- */

/* The last line that a command prints, and its exit code. */
static int last_line(const char *shell, char out[LINE_BYTES])
{
    char line[LINE_BYTES];
    FILE *f = popen(shell, "re");
    int status;
    out[0] = '\0';
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (*line)
            memcpy(out, line, sizeof line);
    }
    status = f ? pclose(f) : -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* As the client would load it; else dlerror() tells why not. */
static int loads(const char *library)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return 0;
    dlclose(handle);
    return 1;
}

static void look_at_gpu(struct doctor *d, const char *module_dir)
{
    static const char name[] = "libtracerd_cuda.so.0";
    const char *asked = getenv("TRACERD_CUDA_LIB");
    char path[LINE_BYTES + 64];
    if (access("/dev/nvidiactl", F_OK) != 0) {
        SAY(d, "gpu", OK, "", "no CUDA device here");
        return;
    }
    if (!loads("libcuda.so.1")) {
        SAY(d, "gpu", NOTE,
            "install the driver's libraries (docker run --gpus all)",
            "a CUDA device, but its driver cannot be loaded: %s", dlerror());
        return;
    }
    if (asked && *asked)
        snprintf(path, sizeof path, "%s", asked);
    else
        snprintf(path, sizeof path, "%s/%s", module_dir, name);
    if (access(path, R_OK) == 0 && loads(path))
        SAY(d, "gpu", OK, "", "statistics on the GPU by '%s'", path);
    else if (access(path, R_OK) == 0)
        SAY(d, "gpu", NOTE, "build it again for this machine",
            "a CUDA device, but '%s' cannot be loaded: %s", path, dlerror());
    else
        SAY(d, "gpu", NOTE,
            "build with -Dcuda=enabled where nvcc is, or export "
            "TRACERD_CUDA_LIB=/path/to/libtracerd_cuda.so.0",
            "a CUDA device, but no '%s': tensors are read by the framework's "
            "own operators",
            path);
}

/* The python3 of PATH, so that of a virtual environment. */
void doctor_python(struct doctor *d)
{
    static const char shell[] =
        "python3 -c 'import tracerd, os; print(tracerd.__version__, "
        "os.path.dirname(tracerd.__file__))' 2>&1";
    static char line[LINE_BYTES];
    char *dir;
    int code;
    fflush(stdout);
    code = last_line(shell, line);
    if (code == 127) {
        SAY(d, "python", NOTE, "", "no python3 in PATH");
        return;
    }
    if (code != 0) {
        SAY(d, "python", NOTE,
            "pip install . in the sources, with the Python you train with",
            "this python3 cannot import tracerd: %s", line);
        return;
    }
    dir = strchr(line, ' ');
    if (dir)
        *dir++ = '\0';
    if (strcmp(line, TRD_VERSION) != 0)
        SAY(d, "python", BAD,
            "pip install --force-reinstall . in the sources of this version",
            "the module is of version %s, tracectl of %s", line, TRD_VERSION);
    else
        SAY(d, "python", OK, "", "module %s in '%s'", line, dir ? dir : "?");
    look_at_gpu(d, dir ? dir : "");
}
