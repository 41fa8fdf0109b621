/* tracectl doctor on installations that are broken in one way each. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/cli.h"
#include "tests/lib/fake_daemon.h"
#include "tests/lib/rig.h"

/* A Python without the module, whatever this machine has. */
#define QUIET "PATH=$PWD/bin:$PATH TRACERD_DATA=$DATA "

static int set_up(void **state)
{
    int rc = cli_setup(state);
    cli_expect(0, "mkdir bin && printf '#!/bin/sh\\necho no module; exit 1\\n'"
                  " > bin/python3 && chmod +x bin/python3");
    return rc;
}

static void test_doctor__nothing_is_wrong(void **state)
{
    const struct cli *r;
    (void)state;
    r = cli_expect(0, QUIET "$T -o json doctor");
    cli_has(r->out, "{\"check\":\"directory\",\"state\":\"ok\",");
    cli_has(r->out, "{\"check\":\"sockets\",\"state\":\"ok\",");
    cli_has(r->out, "{\"check\":\"daemon\",\"state\":\"ok\",");
    cli_has(r->out, "{\"check\":\"data\",\"state\":\"ok\",");
    cli_has(r->out, "{\"check\":\"room\",");
    cli_has(r->out, "{\"check\":\"files\",");
    cli_has(r->out, "{\"check\":\"python\",\"state\":\"note\",\"detail\":"
                    "\"this python3 cannot import tracerd: no module\","
                    "\"mend\":\"pip install");
    cli_has(cli_expect(0, QUIET "$T doctor")->out, "ok    daemon     tracerd ");
    cli_has(cli_expect(0, QUIET "$T -o csv doctor")->out,
            "check,state,detail,mend\n");
    cli_has(cli_expect(2, "$T doctor now")->err, "no words");
}

/* bad in state, and the words of detail and mend. */
static void finds(const char *environment, const char *dir, const char *detail,
                  const char *mend)
{
    const struct cli *r =
        cli_expect(1, "%s " QUIET "$T -s %s doctor", environment, dir);
    cli_has(r->out, "bad   ");
    cli_has(r->out, detail);
    cli_has(r->out, mend);
}

static void test_doctor__directories(void **state)
{
    char deep[200];
    (void)state;
    cli_expect(0, "mkdir -m 755 open; mkdir -m 700 real; ln -s real link; "
                  "echo text > file");
    finds("", "$PWD/absent/dir", "is not there and cannot be made",
          "mend: mkdir -p -m 700 '");
    finds("", "$PWD/link", "is a symbolic link", "export TRACERD_DIR=");
    finds("", "$PWD/file", "is not a directory", "export TRACERD_DIR=");
    finds("", "$PWD/open", "open to other users (mode 0755)",
          "mend: chmod 700 '");
    memset(deep, 'd', sizeof deep);
    deep[100] = '\0';
    cli_expect(0, "mkdir -m 700 %s", deep);
    finds("", deep, "ingest.sock' has 112 bytes, and 107 is the most",
          "export TRACERD_DIR=/a/short/path");
    cli_has(cli_expect(1, QUIET "$T -s $PWD/real2 doctor")->out,
            "is not there yet; tracerd makes it");
}

static void test_doctor__other_users(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    cli_expect(0, "mkdir -m 700 theirs theirdata; chown 65534 theirs "
                  "theirdata");
    finds("", "$PWD/theirs", "belongs to uid 65534, not to uid 0",
          "export TRACERD_DIR=");
    cli_has(cli_expect(1, "PATH=$PWD/bin:$PATH TRACERD_DATA=$PWD/theirdata $T "
                          "-s $PWD/real doctor")->out,
            "belongs to uid 65534, not to uid 0");
    /* somebody who may not even look */
    if (cli_run("setpriv --reuid 65534 --clear-groups true")->code)
        skip();
    cli_expect(0, "cp $T tool && chmod 755 tool . && mkdir -m 700 mine");
    cli_has(cli_expect(1, "PATH=$PWD/bin:$PATH TRACERD_DATA=$PWD/mine setpriv "
                          "--reuid 65534 --clear-groups ./tool -s $PWD/mine "
                          "doctor")->out,
            "permission denied");
}

/* In a mount namespace; 32: not allowed to. */
static const char *on_mount(const char *options)
{
    const struct cli *r = cli_run(
        "mkdir -p mnt; unshare -m true || exit 32; unshare -m sh -c 'mount -t "
        "tmpfs -o %s,mode=700 x mnt || exit 32; " QUIET
        "$T -s $PWD/mnt doctor'",
        options);
    if (r->code == 32 || r->code == 127)
        return NULL;
    assert_int_equal(r->code, 1);
    return r->out;
}

static void test_doctor__file_systems(void **state)
{
    const char *out = on_mount("ro,size=1g");
    (void)state;
    if (!out)
        skip();
    cli_has(out, "a read-only file system");
    cli_has(on_mount("size=64m"),
            "64 MiB free in ");
    cli_has(on_mount("size=64m"), "mend: mount -o remount,size=2g /dev/shm");
    cli_has(on_mount("size=200m"), "room for the journals of 5 processes");
}

/* What is said of a disk of 64 MiB for the runs, filled with some. */
static const char *on_disk(int filled)
{
    const struct cli *r = cli_run(
        "mkdir -p mnt; unshare -m true || exit 32; unshare -m sh -c 'mount -t "
        "tmpfs -o size=64m,mode=700 x mnt || exit 32; head -c %dm /dev/zero > "
        "mnt/x; " QUIET "TRACERD_DATA=$PWD/mnt $T -s $PWD/none doctor'",
        filled);
    return r->code == 32 || r->code == 127 ? NULL : r->out;
}

/* A daemon there keeps 4 MiB in reserve, and 1 MiB free besides. */
static void test_doctor__disks_as_the_daemon_sees_them(void **state)
{
    const char *out = on_disk(1);
    (void)state;
    if (!out)
        skip();
    cli_has(out, "note  disk       63 MiB free in ");
    cli_has(on_disk(58), "note  disk       6 MiB free in ");
    out = on_disk(61);
    cli_has(out, "bad   disk       3 MiB free in ");
    cli_has(out, "with less than 6 MiB nothing is stored");
}

static void test_doctor__limits(void **state)
{
    (void)state;
    cli_has(cli_expect(1, "ulimit -n 256; " QUIET "$T doctor")->out,
            "at most 256 open files");
}

static void test_doctor__python(void **state)
{
    (void)state;
    cli_expect(0, "mkdir good old; printf '#!/bin/sh\\necho %s /m\\n' > "
                  "good/python3; printf '#!/bin/sh\\necho 0.0.1 /m\\n' > "
                  "old/python3; chmod +x */python3", TRD_VERSION);
    cli_has(cli_expect(0, "PATH=$PWD/good:$PATH TRACERD_DATA=$DATA $T doctor")
                ->out,
            "ok    python     module " TRD_VERSION " in '/m'");
    cli_has(cli_expect(1, "PATH=$PWD/old:$PATH TRACERD_DATA=$DATA $T doctor")
                ->out,
            "the module is of version 0.0.1");
}

static void test_doctor__daemons(void **state)
{
    (void)state;
    finds("", "$PWD/real", "another tracerd (pid ", "mend: kill ");
    cli_expect(0, "mv $DIR/query.sock $DIR/q");
    finds("", "$DIR", "its sockets are gone", "; tracerd --dir '");
    cli_expect(0, "echo text > $DIR/query.sock");
    finds("", "$DIR", "query.sock' is not a socket", "mend: mv '");
    cli_expect(0, "mv $DIR/q $DIR/query.sock; chmod 666 $DIR/query.sock");
    finds("", "$DIR", "query.sock' is open to other users",
          "mend: chmod 600 '");
    cli_expect(0, "chmod 600 $DIR/query.sock");
    rig_kill(cli_rig());
    finds("", "$DIR", "is left from a daemon that is gone",
          "mend: tracerd --dir '");
    cli_start_daemon();
    cli_expect(0, QUIET "$T doctor");
    cli_stop_daemon();
    finds("", "$DIR", "no tracerd runs in", "mend: tracerd --dir '");
}

static void test_doctor__another_version(void **state)
{
    static const struct fake_row rows[] = {{"version", "9.9.9", 0}};
    char dir[RIG_PATH];
    pid_t pid;
    (void)state;
    snprintf(dir, sizeof dir, "%.400s/fake", cli_rig()->base);
    pid = fake_daemon(dir, rows, 1);
    finds("", dir, "is of version 9.9.9, tracectl of " TRD_VERSION,
          "mend: kill ");
    fake_daemon_end(pid, dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_doctor__nothing_is_wrong),
        cmocka_unit_test(test_doctor__directories),
        cmocka_unit_test(test_doctor__other_users),
        cmocka_unit_test(test_doctor__file_systems),
        cmocka_unit_test(test_doctor__disks_as_the_daemon_sees_them),
        cmocka_unit_test(test_doctor__limits),
        cmocka_unit_test(test_doctor__python),
        cmocka_unit_test(test_doctor__daemons),
        cmocka_unit_test(test_doctor__another_version),
    };
    return cmocka_run_group_tests(tests, set_up, cli_teardown);
}
