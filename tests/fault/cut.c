/* See cut.h. */
#include "tests/fault/cut.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/ingest.h"

enum {
    SECTOR = 512,
    FILES = 512, /* that ever were */
    NAME = 256,
    PARTS = 1000 /* chances are in so many parts */
};

/* A file, whatever it is called. */
struct file {
    uint64_t ino;
    uint8_t *bytes; /* on the disk for sure */
    size_t n;
    size_t *open;   /* entries since the last sync */
    size_t open_n, open_cap;
};

struct name {
    char text[NAME];
    int file;
};

static char log_path[] = "/tmp/trd-disk-XXXXXX";
static uint8_t *bytes; /* of the log */
static const struct disk_entry **entry;
static size_t entries;

/* The disk: base is what was there when the log began. */
struct disk {
    struct file file[FILES];
    int files;
    struct name name[FILES];
    int names;
    size_t *open; /* entries that changed names since the last sync */
    size_t open_n;
};
static struct disk base, disk;
static uint64_t rng;

static uint64_t random_below(uint64_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng % n;
}

static void *grow(void *p, size_t n)
{
    p = realloc(p, n ? n : 1);
    assert_non_null(p);
    return p;
}

/* ---- files ---- */

static void file_write(struct file *f, uint64_t at, const void *from, size_t n)
{
    if (at + n > f->n) {
        f->bytes = grow(f->bytes, at + n);
        memset(f->bytes + f->n, 0, at + n - f->n);
        f->n = at + n;
    }
    memcpy(f->bytes + at, from, n);
}

static void file_cut(struct file *f, uint64_t n)
{
    if (n < f->n)
        f->n = n;
    else
        file_write(f, n, "", 0);
}

/* The newest file of this number. */
static struct file *file_of(struct disk *d, uint64_t ino)
{
    for (int i = d->files - 1; i >= 0; i--)
        if (d->file[i].ino == ino)
            return &d->file[i];
    fail_msg("a file that nobody made");
    return NULL;
}

static struct file *file_new(struct disk *d, uint64_t ino)
{
    struct file *f = &d->file[d->files++];
    assert_true(d->files < FILES);
    memset(f, 0, sizeof *f);
    f->ino = ino;
    return f;
}

/* Each sector of what entry i wrote gets there or does not. */
static void file_apply(struct file *f, size_t i, uint64_t chance)
{
    const struct disk_entry *e = entry[i];
    const uint8_t *from = (const uint8_t *)(e + 1);
    if (e->kind == DISK_CUT) {
        if (random_below(PARTS) < chance)
            file_cut(f, e->at);
        return;
    }
    for (size_t at = 0, n; at < e->n; at += n) {
        n = SECTOR - (e->at + at) % SECTOR;
        if (n > e->n - at)
            n = e->n - at;
        if (random_below(PARTS) < chance)
            file_write(f, e->at + at, from + at, n);
    }
}

static void file_settle(struct file *f, uint64_t chance)
{
    for (size_t i = 0; i < f->open_n; i++)
        file_apply(f, f->open[i], chance);
    f->open_n = 0;
}

static void file_open(struct file *f, size_t i)
{
    if (f->open_n == f->open_cap) {
        f->open_cap = 2 * f->open_cap + 16;
        f->open = grow(f->open, f->open_cap * sizeof *f->open);
    }
    f->open[f->open_n++] = i;
}

/* ---- names ---- */

static void name_remove(struct disk *d, const char *text, size_t n, int file)
{
    for (int i = 0; i < d->names; i++) {
        struct name *m = &d->name[i];
        if (strlen(m->text) == n && !memcmp(m->text, text, n) &&
            (file < 0 || m->file == file)) {
            *m = d->name[--d->names];
            return;
        }
    }
}

static void name_put(struct disk *d, const char *text, size_t n, int file)
{
    struct name *m;
    name_remove(d, text, n, -1);
    m = &d->name[d->names++];
    assert_true(d->names < FILES && n < NAME);
    memcpy(m->text, text, n);
    m->text[n] = '\0';
    m->file = file;
}

/* The file of an entry that has a name, as it was then: files that come
 * later have a later place. */
static int place_of(struct disk *d, size_t i)
{
    int file = -1, k = base.files;
    for (size_t j = 0; j <= i; j++)
        if (entry[j]->kind == DISK_CREATED &&
            (j == i || entry[j]->ino == entry[i]->ino))
            file = k++;
        else if (entry[j]->kind == DISK_CREATED)
            k++;
    for (int b = 0; file < 0 && b < base.files; b++)
        if (d->file[b].ino == entry[i]->ino)
            file = b;
    assert_true(file >= 0);
    return file;
}

static void name_apply(struct disk *d, size_t i)
{
    const struct disk_entry *e = entry[i];
    const char *text = (const char *)(e + 1);
    size_t n = e->n, k;
    int file = place_of(d, i);
    switch (e->kind) {
    case DISK_CREATED:
        name_put(d, text, n, file);
        break;
    case DISK_UNLINKED:
        name_remove(d, text, n, file);
        break;
    default:
        k = strlen(text);
        name_remove(d, text, k, file);
        name_put(d, text + k + 1, n - k - 1, file);
    }
}

static void names_settle(struct disk *d, uint64_t chance)
{
    for (size_t i = 0; i < d->open_n; i++)
        if (random_below(PARTS) < chance)
            name_apply(d, d->open[i]);
    d->open_n = 0;
}

/* ---- the log ---- */

static void disk_free(struct disk *d)
{
    for (int i = 0; i < d->files; i++) {
        free(d->file[i].bytes);
        free(d->file[i].open);
    }
    free(d->open);
    memset(d, 0, sizeof *d);
}

static void *read_all(const char *path, size_t *n)
{
    struct stat st;
    uint8_t *all;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    all = grow(NULL, (size_t)st.st_size);
    *n = (size_t)st.st_size;
    for (size_t at = 0; at < *n;) {
        ssize_t got = pread(fd, all + at, *n - at, (off_t)at);
        assert_true(got > 0);
        at += (size_t)got;
    }
    close(fd);
    return all;
}

void cut_begin(struct rig *r)
{
    struct dirent *e;
    DIR *d;
    int fd;
    disk_free(&base);
    d = opendir(r->data);
    while (d && (e = readdir(d))) {
        char path[2 * RIG_PATH];
        struct stat st;
        struct file *f;
        snprintf(path, sizeof path, "%s/%s", r->data, e->d_name);
        if (lstat(path, &st) || !S_ISREG(st.st_mode))
            continue;
        f = file_new(&base, st.st_ino);
        f->bytes = read_all(path, &f->n);
        name_put(&base, e->d_name, strlen(e->d_name), base.files - 1);
    }
    if (d)
        closedir(d);
    memcpy(log_path + sizeof log_path - 7, "XXXXXX", 6);
    fd = mkstemp(log_path);
    assert_true(fd >= 0);
    close(fd);
}

void cut_end(void)
{
    unlink(log_path);
    disk_free(&base);
    disk_free(&disk);
    free(bytes);
    free((void *)entry);
    bytes = NULL;
    entry = NULL;
    entries = 0;
}

void cut_record(struct rig *r, bool on)
{
    const char *library = getenv("TRD_DISK");
    assert_non_null(library);
    if (on) {
        setenv("LD_PRELOAD", library, 1);
        setenv("TRD_DISK_DIR", r->data, 1);
        setenv("TRD_DISK_LOG", log_path, 1);
    } else {
        unsetenv("LD_PRELOAD");
    }
}

void cut_told(uint64_t seq)
{
    struct disk_entry e = {DISK_TOLD, 0, 0, seq};
    int fd = open(log_path, O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, &e, sizeof e), sizeof e);
    close(fd);
}

size_t cut_read(void)
{
    size_t n, at = 0, cap = 0;
    free(bytes);
    bytes = read_all(log_path, &n);
    entries = 0;
    while (at + sizeof **entry <= n) {
        const void *e = bytes + at;
        size_t span = sizeof **entry + ((const struct disk_entry *)e)->n;
        span += -span % 8;
        if (at + span > n)
            break; /* the kill came first */
        if (entries == cap) {
            cap = 2 * cap + 64;
            entry = grow((void *)entry, cap * sizeof *entry);
        }
        entry[entries++] = e;
        at += span;
    }
    return entries;
}

const struct disk_entry *cut_entry(size_t i)
{
    return i < entries ? entry[i] : NULL;
}

uint64_t cut_durable(size_t i)
{
    uint64_t seq = 0;
    for (size_t k = 0; k < i && k < entries; k++)
        if (entry[k]->kind == DISK_TOLD && entry[k]->at > seq)
            seq = entry[k]->at;
    return seq;
}

/* ---- a cut ---- */

static void disk_copy(void)
{
    disk_free(&disk);
    disk.files = base.files;
    disk.names = base.names;
    memcpy(disk.name, base.name, sizeof disk.name);
    for (int i = 0; i < base.files; i++) {
        const struct file *from = &base.file[i];
        disk.file[i] = (struct file){.ino = from->ino};
        file_write(&disk.file[i], 0, from->bytes, from->n);
    }
    disk.open = grow(NULL, (entries + 1) * sizeof *disk.open);
}

static void disk_step(size_t i)
{
    const struct disk_entry *e = entry[i];
    switch (e->kind) {
    case DISK_CREATED:
        file_new(&disk, e->ino);
        disk.open[disk.open_n++] = i;
        break;
    case DISK_UNLINKED:
    case DISK_RENAMED:
        disk.open[disk.open_n++] = i;
        break;
    case DISK_WRITTEN:
    case DISK_CUT:
        file_open(file_of(&disk, e->ino), i);
        break;
    case DISK_SYNCED:
        file_settle(file_of(&disk, e->ino), PARTS);
        break;
    case DISK_NOT_SYNCED:
        file_settle(file_of(&disk, e->ino), PARTS / 2);
        break;
    case DISK_DIR_SYNCED:
        names_settle(&disk, PARTS);
        break;
    default:
        break;
    }
}

static void clear_dir(const char *dir)
{
    struct dirent *e;
    DIR *d = opendir(dir);
    while (d && (e = readdir(d))) {
        char path[2 * RIG_PATH];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        unlink(path); /* not "." and ".." */
    }
    if (d)
        closedir(d);
}

static void disk_write(const char *dir)
{
    mkdir(dir, 0700);
    clear_dir(dir);
    for (int i = 0; i < disk.names; i++) {
        const struct file *f = &disk.file[disk.name[i].file];
        char path[2 * RIG_PATH];
        int fd;
        snprintf(path, sizeof path, "%s/%s", dir, disk.name[i].text);
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        for (size_t at = 0; at < f->n;) {
            ssize_t got = write(fd, f->bytes + at, f->n - at);
            assert_true(got > 0);
            at += (size_t)got;
        }
        close(fd);
    }
}

void cut_make(const char *dir, size_t i, uint64_t seed)
{
    /* none of it, a few sectors, half of them, most, all */
    static const uint64_t chances[] = {0, 100, 500, 900, PARTS};
    uint64_t chance, names;
    rng = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15);
    chance = chances[random_below(sizeof chances / sizeof *chances)];
    names = chances[random_below(sizeof chances / sizeof *chances)];
    disk_copy();
    for (size_t k = 0; k < i && k < entries; k++)
        disk_step(k);
    for (int f = 0; f < disk.files; f++)
        file_settle(&disk.file[f], chance);
    names_settle(&disk, names);
    disk_write(dir);
}
