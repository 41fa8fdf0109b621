/* Runs a fuzz target on files, without libFuzzer: what once was found, and
 * what leads into every corner, in each ordinary test run.
 *
 *   replay_NAME FILE|FOLDER...     NAME is the target's
 *
 * A folder's files are taken in it, not below it; an empty input always. How
 * many there were goes to the table of faults (22). */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <sys/stat.h>

static unsigned long inputs;

static void run(const uint8_t *data, size_t size)
{
    /* Exactly as long as it is, for the address sanitizer. */
    uint8_t *copy = malloc(size + !size);

    FUZZ_CHECK(copy);
    if (size)
        memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    inputs++;
}

static int run_file(const char *path)
{
    static uint8_t data[1 << 20];
    FILE *f = fopen(path, "rb");
    size_t size;

    if (!f) {
        perror(path);
        return 2;
    }
    size = fread(data, 1, sizeof data, f);
    fclose(f);
    /* Should the target end the process, this is the last line. */
    fprintf(stderr, "%s\n", path);
    run(data, size);
    return 0;
}

static int run_folder(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    int bad = 0;

    if (!folder) {
        perror(path);
        return 2;
    }
    while ((entry = readdir(folder))) {
        char file[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        bad |= run_file(file);
    }
    closedir(folder);
    return bad;
}

/* For tests/fault/table.py, as oracle_held() of lib/oracle.h. */
static void held(void)
{
    const char *path = getenv("TRD_FAULTS_HELD");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f)
        return;
    fprintf(f, "22\t%lu\tinputs that fuzzing found, and all corners\n", inputs);
    fclose(f);
}

int main(int argc, char **argv)
{
    int bad = 0;

    run(NULL, 0);
    for (int i = 1; i < argc; i++) {
        struct stat s;
        if (!stat(argv[i], &s) && S_ISDIR(s.st_mode))
            bad |= run_folder(argv[i]);
        else
            bad |= run_file(argv[i]);
    }
    printf("%lu inputs\n", inputs);
    if (!bad)
        held();
    return bad;
}
