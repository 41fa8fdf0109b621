/* A daemon with hardly any memory or processor time. The training does not
 * notice: its submits make no system call, and what the daemon cannot take
 * waits in the journal or is counted as lost. */
#include "tests/lib/trainee.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MEMORY_MB = 216, /* of addresses; its threads' stacks are 160 of them */
    CGROUP_MB = 32,
    SECONDS = 4,
    DEAD = 3
};

static void until_told(struct trd_client *c)
{
    (void)c;
    while (!trainee->n[0])
        trainee_nap_ms(1);
}

static void check(pid_t pid)
{
    trainee->n[0] = 1;
    trainee_ends(pid, 0);
    /* it may have been killed for its memory: then another goes on */
    if (!rig_alive(&ingest.rig)) {
        ingest.rig.pid = 0;
        rig_start(&ingest.rig);
    }
    oracle_process(&ingest.rig, "run", pid, trainee->accepted, 0,
                   trainee->refused);
    oracle_run(&ingest.rig, "run");
    rig_stop(&ingest.rig);
}

static void limit_addresses(void)
{
    const struct rlimit memory = {(rlim_t)MEMORY_MB << 20,
                                  (rlim_t)MEMORY_MB << 20};
    assert_int_equal(prlimit(ingest.rig.pid, RLIMIT_AS, &memory, NULL), 0);
}

/* One hundredth of the time, last of all, and an address space that ends. */
static void test_starved__nice_one_percent_and_little_memory(void **state)
{
    pid_t pid;
    (void)state;
    rig_start(&ingest.rig);
    assert_int_equal(setpriority(PRIO_PROCESS, (id_t)ingest.rig.pid, 19), 0);
    limit_addresses();
    pid = trainee_start(NULL, until_told);
    for (int i = 0; i < SECONDS * 10; i++) {
        kill(ingest.rig.pid, SIGCONT);
        trainee_nap_ms(1);
        kill(ingest.rig.pid, SIGSTOP);
        trainee_nap_ms(99);
    }
    kill(ingest.rig.pid, SIGCONT);
    check(pid);
    oracle_held(43, SECONDS * 10, "daemon: nice 19, 1 % of the time by "
                                  "SIGSTOP, RLIMIT_AS");
}

/* What the threads that ended one dead training's journal keep must leave
 * room for the next one's. */
static void test_starved__journals_of_the_dead_and_little_memory(void **state)
{
    uint64_t told[DEAD];
    pid_t pid[DEAD];
    (void)state;
    rig_start(&ingest.rig);
    limit_addresses();
    for (int i = 0; i < DEAD; i++) {
        pid[i] = trainee_start(NULL, until_told);
        trainee_nap_ms(300);
        kill(ingest.rig.pid, SIGSTOP);
        trainee_nap_ms(200);
        kill(pid[i], SIGKILL);
        trainee_ends(pid[i], -SIGKILL);
        told[i] = trainee->accepted;
        kill(ingest.rig.pid, SIGCONT);
        oracle_process(&ingest.rig, "run", pid[i], told[i], TRAINEE_THREADS,
                       UINT64_MAX);
    }
    assert_true(rig_alive(&ingest.rig));
    oracle_run(&ingest.rig, "run");
    rig_stop(&ingest.rig);
}

/* ---- control groups ---- */

static bool put(const char *dir, const char *file, const char *text)
{
    char path[512];
    int fd;
    bool done;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    fd = open(path, O_WRONLY);
    if (fd < 0)
        return false;
    done = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return done;
}

static bool enter(const char *dir, pid_t pid)
{
    char text[32];
    snprintf(text, sizeof text, "%d", (int)pid);
    return put(dir, "cgroup.procs", text);
}

static char memory_dir[128], cpu_dir[128];

/* Version 2 of them, else 1. */
static bool limit_both(pid_t pid)
{
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%d", CGROUP_MB << 20);
    snprintf(memory_dir, sizeof memory_dir, "/sys/fs/cgroup/tracerd-test-%d",
             (int)getpid());
    snprintf(cpu_dir, sizeof cpu_dir, "%s", memory_dir);
    if (access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0) {
        if (mkdir(memory_dir, 0700))
            return false;
        return put(memory_dir, "memory.max", bytes) &&
               put(memory_dir, "cpu.max", "1000 100000") &&
               enter(memory_dir, pid);
    }
    snprintf(memory_dir, sizeof memory_dir,
             "/sys/fs/cgroup/memory/tracerd-test-%d", (int)getpid());
    snprintf(cpu_dir, sizeof cpu_dir, "/sys/fs/cgroup/cpu/tracerd-test-%d",
             (int)getpid());
    return !mkdir(memory_dir, 0700) && !mkdir(cpu_dir, 0700) &&
           put(memory_dir, "memory.limit_in_bytes", bytes) &&
           put(cpu_dir, "cpu.cfs_period_us", "100000") &&
           put(cpu_dir, "cpu.cfs_quota_us", "1000") &&
           enter(memory_dir, pid) && enter(cpu_dir, pid);
}

static void remove_groups(void)
{
    rmdir(memory_dir);
    rmdir(cpu_dir);
}

static int tear_down(void **state)
{
    int failed = ingest_tear_down(state);
    remove_groups();
    return failed;
}

static void test_starved__control_groups(void **state)
{
    pid_t pid;
    (void)state;
    rig_start(&ingest.rig);
    if (!limit_both(ingest.rig.pid)) {
        print_message("no control group may be made here\n");
        rig_kill(&ingest.rig);
        skip();
    }
    pid = trainee_start(NULL, until_told);
    trainee_nap_ms(SECONDS * 1000);
    /* the rest is stored at its own speed */
    put(cpu_dir, "cpu.max", "max 100000");
    put(cpu_dir, "cpu.cfs_quota_us", "-1");
    check(pid);
    oracle_held(43, 1, "daemon: control group of 32 MiB and 1 % of a "
                       "processor");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_starved__nice_one_percent_and_little_memory),
        ingest_test(test_starved__journals_of_the_dead_and_little_memory),
        cmocka_unit_test_setup_teardown(test_starved__control_groups,
                                        ingest_set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
