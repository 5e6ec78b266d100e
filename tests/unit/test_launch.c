/* Launch: what the environment says, exit codes, and joining without our launcher. What kills ranks is in
 * tests/fault. argv[1]: the launch_rank program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ranks/launch.h"
#include "ranks/store_wire.h"

static const char *program;
static char output[65536]; /* of the last run, stdout and stderr together */

static const char *const variables[] = { "RANK",
                                         "WORLD_SIZE",
                                         "LOCAL_RANK",
                                         "LOCAL_WORLD_SIZE",
                                         "MASTER_ADDR",
                                         "MASTER_PORT",
                                         "TENON_PORT",
                                         "TENON_TOKEN",
                                         "TENON_LAUNCHER",
                                         "TORCHELASTIC_USE_AGENT_STORE",
                                         "LAUNCH_RANK_TIMEOUT",
                                         "PMIX_NAMESPACE",
                                         "OMPI_COMM_WORLD_RANK",
                                         "OMPI_COMM_WORLD_SIZE",
                                         "OMPI_COMM_WORLD_LOCAL_RANK",
                                         "SLURM_PROCID",
                                         "SLURM_STEP_NUM_TASKS",
                                         "SLURM_NTASKS",
                                         "SLURM_JOB_ID",
                                         "SLURM_STEP_NUM_NODES",
                                         "SLURM_STEP_NODELIST" };

static int clear(void **state)
{
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    return 0;
}

/* "NAME=value ..." into the environment. */
static void set(const char *pairs)
{
    char copy[512], *rest = copy, *pair;
    snprintf(copy, sizeof copy, "%s", pairs);
    while ((pair = strsep(&rest, " ")) != NULL) {
        char *value = strchr(pair, '=');
        *value = 0;
        setenv(pair, value + 1, 1);
    }
}

/* Runs a shell line in which $0 is the program; its exit code. */
static int run(const char *line)
{
    int fds[2], status;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], 1);
        dup2(fds[1], 2);
        execl("/bin/sh", "sh", "-c", line, program, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    size_t length = 0;
    ssize_t n;
    while ((n = read(fds[0], output + length, sizeof output - 1 - length)) > 0)
        length += (size_t)n;
    output[length] = 0;
    close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int count(const char *text)
{
    int found = 0;
    for (const char *at = output; (at = strstr(at, text)) != NULL; at++)
        found++;
    return found;
}

static void expect(const char *text)
{
    if (!strstr(output, text))
        fail_msg("expected \"%s\" in:\n%s", text, output);
}

static int hold(uint16_t port)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    int holder = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(holder, (struct sockaddr *)&at, sizeof at) == 0)
        return holder;
    close(holder);
    return -1;
}

/* A port that is free, as the next one is, and that the system gives to no connection of somebody else meanwhile. */
static uint16_t free_port(int *holder)
{
    static uint16_t next;
    for (int tries = 0; tries < 4000; tries++, next += 2) {
        uint16_t port = (uint16_t)(20000 + ((uint32_t)getpid() * 8u + next) % 12000);
        int after = hold(port + 1);
        *holder = hold(port);
        close(after);
        if (*holder >= 0 && after >= 0) {
            next += 2;
            return port;
        }
        close(*holder);
    }
    fail_msg("no free port");
    return 0;
}

static uint16_t any_port(void)
{
    int holder;
    uint16_t port = free_port(&holder);
    close(holder);
    return port;
}

static void test_environment(void **state)
{
    static const struct {
        const char *set;
        int joined;
        const char *error;
    } cases[] = {
        { "MASTER_ADDR=somewhere", 0, NULL },
        { "RANK=1 WORLD_SIZE=2", 1, NULL },
        { "RANK=0 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", 1, NULL },
        { "RANK=1", -1, "RANK is \"1\" but WORLD_SIZE is not set; set both to join a job, neither to start one" },
        { "WORLD_SIZE=2", -1, "WORLD_SIZE is \"2\" but RANK is not set; set both to join a job, neither to start one" },
        { "RANK=2 WORLD_SIZE=2", -1, "RANK is 2 but WORLD_SIZE is 2; use a RANK from 0 to 1" },
        { "RANK=one WORLD_SIZE=2", -1, "RANK is \"one\"; use a number from 0 to 1048576" },
        { "RANK=1x WORLD_SIZE=2", -1, "RANK is \"1x\"; use a number from 0 to 1048576" },
        { "RANK=-1 WORLD_SIZE=2", -1, "RANK is \"-1\"; use a number from 0 to 1048576" },
        { "RANK= WORLD_SIZE=2", -1, "RANK is \"\"; use a number from 0 to 1048576" },
        { "RANK=0 WORLD_SIZE=0", -1, "WORLD_SIZE is \"0\"; use a number from 1 to 1048576" },
        { "RANK=0 WORLD_SIZE=99999999999999999999", -1,
          "WORLD_SIZE is \"99999999999999999999\"; use a number from 1 to 1048576" },
        { "RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3", -1, "LOCAL_WORLD_SIZE is \"3\"; use a number from 1 to 2" },
        { "RANK=0 WORLD_SIZE=2 LOCAL_RANK=2", -1, "LOCAL_RANK is \"2\"; use a number from 0 to 1" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char error[256] = "";
        int32_t rank = -7, world = -7;
        clear(state);
        set(cases[i].set);
        assert_int_equal(tn_launch_joined(&rank, &world, error, sizeof error), cases[i].joined);
        if (cases[i].error)
            assert_string_equal(error, cases[i].error);
    }
}

/* Variables of other launchers, without PMIx. */
static void test_other_launchers(void **state)
{
    static const struct {
        const char *set;
        int joined;
        const char *addr, *port;
    } cases[] = {
        { "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1", 1, "127.0.0.1", NULL },
        { "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 MASTER_PORT=4000", 1, "127.0.0.1", "4000" },
        { "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=7 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=n7", 1,
          "127.0.0.1", NULL },
        { "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=a,b", 1, "a", NULL },
        { "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=3 SLURM_STEP_NODELIST=n[07-08],x[1,2]", 1, "n07",
          NULL },
        { "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=r[3,5]-gpu", 1, "r3-gpu",
          NULL },
        { "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=a,b MASTER_ADDR=c", 1, "c",
          NULL },
        { "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1", 0, NULL, NULL }, /* free to start ranks itself */
        { "SLURM_PROCID=0 SLURM_NTASKS=4", 0, NULL, NULL },         /* a batch script, not a step */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char error[256] = "";
        int32_t rank = -7, world = -7;
        clear(state);
        set(cases[i].set);
        assert_int_equal(tn_launch_joined(&rank, &world, error, sizeof error), cases[i].joined);
        if (!cases[i].joined)
            continue;
        assert_int_equal(rank, 1);
        assert_int_equal(world, 2);
        assert_string_equal(getenv("MASTER_ADDR"), cases[i].addr);
        if (cases[i].port)
            assert_string_equal(getenv("MASTER_PORT"), cases[i].port);
        long port = strtol(getenv("MASTER_PORT"), NULL, 10);
        assert_true(cases[i].port || (port >= 20000 && port < 32000));
    }
}

/* Both are set: they count, whatever another launcher says. */
static void test_ours_first(void **state)
{
    set("RANK=3 WORLD_SIZE=5 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2");
    int32_t rank, world;
    assert_int_equal(tn_launch_joined(&rank, &world, NULL, 0), 1);
    assert_int_equal(rank, 3);
    assert_int_equal(world, 5);
}

static void test_place(void **state)
{
    static const struct {
        const char *set, *error;
    } cases[] = {
        { "PATH=/bin", "this process is no rank: RANK and WORLD_SIZE are not set" },
        { "RANK=0 WORLD_SIZE=2", "WORLD_SIZE is 2 but MASTER_ADDR is not set; set it to the host of rank 0" },
        { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1",
          "WORLD_SIZE is 2 but MASTER_PORT is not set; set it to a free port there" },
        { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=65536",
          "MASTER_PORT is \"65536\"; use a number from 1 to 65535" },
        { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=192.0.2.1 MASTER_PORT=4000",
          "cannot listen on 192.0.2.1:4000: Cannot assign requested address; MASTER_ADDR must be an address of rank "
          "0's host and MASTER_PORT a free port there" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tn_rank rank;
        char error[256];
        clear(state);
        set(cases[i].set);
        assert_true(tn_rank_init(&rank, 1000000000u, error, sizeof error) < 0);
        assert_string_equal(error, cases[i].error);
        assert_null(rank.server);
    }
}

static void test_alone(void **state)
{
    struct tn_rank rank;
    char error[256];
    set("RANK=0 WORLD_SIZE=1");
    assert_int_equal(tn_rank_init(&rank, 5000000000u, error, sizeof error), TN_OK);
    assert_int_equal(rank.bootstrap.size, 1);
    assert_int_equal(rank.bootstrap.local_size, 1);
    assert_int_equal(tn_rank_interrupted(), 0);
    tn_rank_finish(&rank);
}

static void test_local(void **state)
{
    set("TENON_TOKEN=of_another_job TENON_PORT=1 TORCHELASTIC_USE_AGENT_STORE=True");
    assert_int_equal(run("exec $0 4 ok"), 0);
    assert_int_equal(count("joined 4"), 4);
    expect("rank 0 local 0");
    expect("rank 3 local 3");
    assert_int_equal(count("tenon:"), 0);
    assert_int_equal(run("exec $0 1 ok"), 0);
    assert_int_equal(run("exec $0 3 slow ok"), 0);
    assert_int_equal(run("exec $0 2 bare:0"), 0);
}

static void test_exit_codes(void **state)
{
    assert_int_equal(run("exec $0 3 bare:0 bare:2 bare:0"), 2);
    expect("tenon: error: rank 1 exited with code 2");
    assert_int_equal(run("exec $0 3 bare:2"), 2);
    assert_int_equal(count("tenon: error"), 1);
    assert_int_equal(run("exec $0 2 ok bare:77"), 77);
    expect("rank 0 heard: rank 1 exited with code 77");
    assert_int_equal(run("exec $0 0 ok"), 2);
    expect("cannot start 0 ranks; use 1 to");
}

/* Started by someone else: rank 0 serves, and stays until the last has left. */
static void test_join(void **state)
{
    char line[512];
    snprintf(line, sizeof line,
             "export WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=%u; (sleep 0.3; RANK=0 $0 3 ok)& a=$!; "
             "RANK=1 $0 3 slow& b=$!; RANK=2 $0 3 ok& c=$!; wait $a && wait $b && wait $c",
             any_port());
    assert_int_equal(run(line), 0);
    assert_int_equal(count("joined 3"), 3);
    assert_int_equal(count("heard"), 0);
    set("TORCHELASTIC_USE_AGENT_STORE=True");
    assert_int_equal(run(line), 0);
    set("TENON_TOKEN=secret");
    assert_int_equal(run(line), 0);
}

static void test_join_fails(void **state)
{
    char line[512];
    int holder;
    set("MASTER_ADDR=127.0.0.1 LAUNCH_RANK_TIMEOUT=1");
    snprintf(line, sizeof line, "MASTER_PORT=%u RANK=1 WORLD_SIZE=2 exec $0 2 ok", any_port());
    assert_int_equal(run(line), 1);
    expect("no store answered at 127.0.0.1:");
    expect("(Connection refused); is rank 0 running there?");

    /* The other rank is there first, so that it joins in time on a busy machine too. */
    snprintf(line, sizeof line,
             "export WORLD_SIZE=5 MASTER_PORT=%u; LAUNCH_RANK_TIMEOUT=100 RANK=2 $0 5 ok& b=$!; sleep 0.5; "
             "LAUNCH_RANK_TIMEOUT=3 RANK=0 $0 5 ok& a=$!; wait $a; wait $b",
             any_port());
    assert_int_equal(run(line), 1);
    expect("rank 0 error: after 3.0 s not all of the 5 ranks have joined at 127.0.0.1:");
    expect("missing: 1, 3-4");
    expect("rank 2 heard: rank 1 has not joined in time");

    snprintf(line, sizeof line,
             "export WORLD_SIZE=2 MASTER_PORT=%u; LAUNCH_RANK_TIMEOUT=100 TENON_TOKEN=other RANK=1 $0 2 ok& b=$!; "
             "sleep 0.5; LAUNCH_RANK_TIMEOUT=3 RANK=0 $0 2 ok& a=$!; wait $a; wait $b",
             any_port());
    assert_int_equal(run(line), 1);
    expect("refuses rank 1: it does not accept the token; TENON_TOKEN must be the same on all ranks of a job");

    uint16_t port = free_port(&holder);
    assert_int_equal(listen(holder, 1), 0);
    snprintf(line, sizeof line, "MASTER_PORT=%u RANK=0 WORLD_SIZE=2 exec $0 2 ok", port);
    assert_int_equal(run(line), 1);
    expect("Address already in use; MASTER_ADDR must be an address of rank 0's host and MASTER_PORT a free port there");
    close(holder);

    assert_int_equal(run("RANK=5 WORLD_SIZE=2 exec $0 2 ok"), 2);
    expect("error: RANK is 5 but WORLD_SIZE is 2; use a RANK from 0 to 1");
}

/* The rank that serves dies: the others name it. */
static void test_join_server_dies(void **state)
{
    char line[512];
    snprintf(line, sizeof line,
             "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%u; RANK=0 $0 2 late:1& a=$!; RANK=1 $0 2 wait& "
             "b=$!; wait $a; wait $b",
             any_port());
    assert_int_equal(run(line), 1);
    expect("rank 0 is gone: its store at 127.0.0.1:");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_environment, clear), cmocka_unit_test_setup(test_place, clear),
        cmocka_unit_test_setup(test_ours_first, clear),  cmocka_unit_test_setup(test_other_launchers, clear),
        cmocka_unit_test_setup(test_alone, clear),       cmocka_unit_test_setup(test_local, clear),
        cmocka_unit_test_setup(test_exit_codes, clear),  cmocka_unit_test_setup(test_join, clear),
        cmocka_unit_test_setup(test_join_fails, clear),  cmocka_unit_test_setup(test_join_server_dies, clear),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: test_launch LAUNCH_RANK\n");
        return 2;
    }
    program = argv[1];
    setenv("TSAN_OPTIONS", "report_thread_leaks=0 atexit_sleep_ms=0", 0); /* ranks that fail just exit */
    alarm(400);                                                           /* a hang is a failure */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
