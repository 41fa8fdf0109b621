/* Every call of the client fails once, and from then on, one after the other:
 * memory, the journal's file, the socket, the thread.
 *
 * Each case: a real daemon, and a training process with one fault. Whatever
 * happened, the process ends by itself with its own exit code, no call of it
 * takes long, and every record is stored once or counted as lost. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fault/sweep.h"
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include "tracerd/client.h"

enum {
    RECORDS = 40,
    SLOWEST_MS = 2000, /* of any call but flush; for a loaded machine */
    NOT_OPENED = 9     /* exit code: the client said that it cannot open */
};

static const char *self;

/* ---- the training process ---- */

static long long slowest, since;

static void begin(void)
{
    since = rig_now_ms();
}

static void end(void)
{
    long long took = rig_now_ms() - since;
    slowest = took > slowest ? took : slowest;
}

/* What the test learns of it: one line on stdout. */
static int train(const char *dir)
{
    struct trd_client_options o;
    struct trd_client *c = NULL;
    struct trd_counters n;
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    const float data[4] = {1, 2, 3, 4};
    const int64_t shape[1] = {4};
    struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
    uint64_t accepted = 0, lost = 0;
    uint32_t id = 0;
    char line[64];
    int failed;
    trd_client_options_init(&o);
    o.dir = dir;
    o.run = "run";
    o.journal_bytes = 1 << 20;
    begin();
    failed = trd_client_open(&o, &c);
    end();
    if (failed)
        return slowest > SLOWEST_MS ? 1 : NOT_OPENED;
    trd_site(c, &s, &id);
    for (uint64_t i = 1; i <= RECORDS; i++) {
        struct trd_when when = {.step = i, .iteration = i, .microbatch = 1};
        begin();
        accepted += !trd_submit_cpu(c, id, &when, &t, 4);
        end();
    }
    failed = trd_flush(c, 500);
    trd_counters(c, &n);
    for (int i = 0; i < TRD_CAUSE_COUNT; i++)
        lost += n.lost[i];
    begin();
    trd_client_close(c);
    end();
    /* by a call that the shim does not know */
    snprintf(line, sizeof line, "%llu %llu %d\n",
             (unsigned long long)accepted, (unsigned long long)lost, failed);
    if (pwritev(STDOUT_FILENO, &(struct iovec){line, strlen(line)}, 1, 0) < 0)
        return 2;
    return slowest > SLOWEST_MS ? 1 : 0;
}

/* ---- the cases ---- */

struct result {
    unsigned long long accepted, lost;
    int flush; /* 0, or what trd_flush() said */
};

/* False when it could not open the client, which is an answer. */
static bool run_training(struct result *out)
{
    char name[] = "/tmp/trd-fault-out-XXXXXX", line[64] = "";
    int fd = mkstemp(name), status;
    pid_t pid;
    assert_true(fd >= 0);
    unlink(name);
    sweep_preload(true);
    pid = fork();
    if (!pid) {
        dup2(fd, STDOUT_FILENO);
        execl(self, self, "train", ingest.rig.dir, (char *)NULL);
        _exit(127);
    }
    sweep_preload(false);
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status))
        fail_msg("training died of signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status) == NOT_OPENED) {
        close(fd);
        return false;
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(pread(fd, line, sizeof line - 1, 0) > 0);
    close(fd);
    assert_int_equal(sscanf(line, "%llu %llu %d", &out->accepted, &out->lost,
                            &out->flush),
                     3);
    return true;
}

static void check(const struct result *r)
{
    int64_t stored;
    assert_int_equal(r->accepted + r->lost, RECORDS);
    if (r->flush == 0)
        rig_until(ingest_ask("run", "SELECT count(*) FROM record") ==
                  (int64_t)r->accepted);
    /* an end without a flush: what the journal has comes, if there is one */
    stored = ingest_ask("run", "SELECT count(*) FROM record");
    assert_true(stored <= (int64_t)r->accepted);
    if (stored > 0)
        assert_int_equal(
            ingest_ask("run", "SELECT count(DISTINCT step) FROM record"),
            stored);
    oracle_run(&ingest.rig, "run");
}

static void run_case(int op, int64_t nth, int how)
{
    struct result r;
    rig_start(&ingest.rig);
    sweep_arm(op, nth, how);
    if (run_training(&r))
        check(&r);
}

int main(int argc, char **argv)
{
    const struct sweep s = {.run_case = run_case, .side = "client", .some = 4};
    if (argc == 3 && !strcmp(argv[1], "train"))
        return train(argv[2]);
    self = argv[0];
    return sweep_main(&s);
}
