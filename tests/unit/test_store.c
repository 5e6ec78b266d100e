/* Store: values, deaths, refusals, strangers on the port, and many clients. Loopback only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ranks/store_server.h"

#define TOKEN "a token for tests"

/* What takes as long as the machine is busy with other things has this much time; what must not be waited for takes
 * longer than `soon_ns`. */
static const uint64_t second_ns = 1000000000u, patience_ns = 60000000000u, soon_ns = 4000000000u;

static struct tn_store_server *server;
static uint16_t port;
static char error[512];

static void nap_ms(int ms)
{
    nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000L }, NULL);
}

static void serve(int32_t world)
{
    port = 0;
    assert_int_equal(tn_store_serve(&server, "127.0.0.1", &port, TOKEN, world, error, sizeof error), TN_OK);
    assert_int_not_equal(port, 0);
}

static int stop(void **state)
{
    tn_store_stop(server);
    server = NULL;
    return 0;
}

static tn_status try_join(struct tn_store **store, const char *token, int32_t rank, int32_t world)
{
    error[0] = 0;
    return tn_store_connect(store, "127.0.0.1", port, token, rank, world, patience_ns, error, sizeof error);
}

static struct tn_store *join(int32_t rank, int32_t world)
{
    struct tn_store *store;
    assert_int_equal(try_join(&store, TOKEN, rank, world), TN_OK);
    return store;
}

/* All ranks of a job of `world`, bootstrapped. */
static void join_all(struct tn_store **stores, struct tn_bootstrap *boots, int32_t world)
{
    serve(world);
    for (int32_t rank = 0; rank < world; rank++)
        stores[rank] = join(rank, world);
    for (int32_t rank = 0; rank < world; rank++)
        assert_int_equal(tn_store_bootstrap(stores[rank], patience_ns, &boots[rank]), TN_OK);
}

static tn_status get_wait(struct tn_bootstrap *b, const char *key, void *data, uint32_t *bytes)
{
    uint32_t room = *bytes;
    for (uint64_t began = tn_now_ns(); tn_now_ns() - began < patience_ns;) {
        *bytes = room;
        tn_status status = b->get(b->ctx, key, data, bytes);
        if (status != TN_PENDING)
            return status;
        nap_ms(1);
    }
    return TN_TIMEOUT;
}

static const char *hear_death(struct tn_store *store, int32_t *rank)
{
    for (uint64_t began = tn_now_ns(); tn_now_ns() - began < patience_ns;) {
        const char *death = tn_store_death(store, rank);
        if (death)
            return death;
        nap_ms(1);
    }
    return "nothing";
}

/* A plain connection to the port, as a stranger makes one. */
static int dial(void)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    struct timeval patience = { (time_t)(patience_ns / second_ns), 0 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* The server closes the connection, soon, not as late as one that says nothing. */
static void expect_closed(int fd)
{
    char byte;
    uint64_t began = tn_now_ns();
    while (recv(fd, &byte, 1, 0) > 0)
        ;
    assert_true(tn_now_ns() - began < soon_ns);
    close(fd);
}

/* A member that speaks the protocol by hand. */
static int dial_as(int32_t rank, int32_t world)
{
    struct tn_buf out;
    char hello[TN_WIRE_HELLO_BYTES] = { 0 }, answer[TN_WIRE_MAGIC_BYTES + TN_WIRE_HEADER_BYTES + 8];
    tn_buf_init(&out);
    tn_wire_put_u32(hello, TN_WIRE_VERSION);
    tn_wire_put_u32(hello + 4, (uint32_t)world);
    tn_wire_greet(&out);
    tn_wire_add(&out, TN_WIRE_HELLO, rank, TOKEN, strlen(TOKEN), hello, sizeof hello);
    int fd = dial();
    assert_int_equal(send(fd, out.text, out.length, 0), out.length);
    assert_int_equal(recv(fd, answer, sizeof answer, MSG_WAITALL), sizeof answer);
    assert_int_equal(answer[TN_WIRE_MAGIC_BYTES], TN_WIRE_WELCOME);
    tn_buf_finish(&out);
    return fd;
}

static void test_values(void **state)
{
    struct tn_store *stores[2];
    struct tn_bootstrap b[2];
    char value[16];
    uint32_t bytes = sizeof value;
    join_all(stores, b, 2);
    assert_int_equal(b[0].get(b[0].ctx, "key", value, &bytes), TN_PENDING);
    nap_ms(20);
    assert_int_equal(b[0].get(b[0].ctx, "key", value, &bytes), TN_PENDING);
    assert_int_equal(b[1].put(b[1].ctx, "key", "0123456789", 10), TN_OK);
    assert_int_equal(b[1].put(b[1].ctx, "key", "second put", 10), TN_OK);
    assert_int_equal(get_wait(&b[0], "key", value, &bytes), TN_OK);
    assert_int_equal(bytes, 10);
    assert_memory_equal(value, "0123456789", 10);
    bytes = sizeof value;
    assert_int_equal(get_wait(&b[1], "key", value, &bytes), TN_OK);
    assert_memory_equal(value, "0123456789", 10);

    memset(value, 'x', sizeof value);
    bytes = 4;
    assert_int_equal(b[0].get(b[0].ctx, "key", value, &bytes), TN_OK);
    assert_int_equal(bytes, 10);
    assert_memory_equal(value, "0123xxxx", 8);
    for (int i = 0; i < 2; i++)
        tn_store_goodbye(stores[i]);
}

static void test_sizes(void **state)
{
    struct tn_store *stores[2];
    struct tn_bootstrap b[2];
    static char big[TN_STORE_VALUE_MAX + 1], back[TN_STORE_VALUE_MAX];
    char key[TN_STORE_KEY_MAX + 2];
    uint32_t bytes = 0;
    join_all(stores, b, 2);
    memset(key, 'k', sizeof key);
    key[TN_STORE_KEY_MAX + 1] = 0;
    assert_int_equal(b[0].put(b[0].ctx, key, "v", 1), TN_INVALID);
    assert_int_equal(b[0].get(b[0].ctx, key, back, &bytes), TN_INVALID);
    key[TN_STORE_KEY_MAX] = 0;
    assert_int_equal(b[0].put(b[0].ctx, key, big, sizeof big), TN_INVALID);
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)(i * 7 + i / 251);
    assert_int_equal(b[0].put(b[0].ctx, key, big, TN_STORE_VALUE_MAX), TN_OK);
    assert_int_equal(b[0].put(b[0].ctx, "empty", NULL, 0), TN_OK);
    bytes = sizeof back;
    assert_int_equal(get_wait(&b[1], key, back, &bytes), TN_OK);
    assert_int_equal(bytes, TN_STORE_VALUE_MAX);
    assert_memory_equal(big, back, TN_STORE_VALUE_MAX);
    bytes = 0;
    assert_int_equal(get_wait(&b[1], "empty", NULL, &bytes), TN_OK);
    assert_int_equal(bytes, 0);
    for (int i = 0; i < 2; i++)
        tn_store_goodbye(stores[i]);
}

/* 64 MiB are the most; then puts fail and the job goes on. */
static void test_full(void **state)
{
    struct tn_store *stores[2];
    struct tn_bootstrap b[2];
    static char big[TN_STORE_VALUE_MAX];
    char key[32];
    tn_status status = TN_OK;
    int puts = 0;
    join_all(stores, b, 2);
    for (uint64_t began = tn_now_ns(); status != TN_NO_MEMORY && tn_now_ns() - began < patience_ns;) {
        snprintf(key, sizeof key, "big.%d", puts);
        status = b[0].put(b[0].ctx, key, big, sizeof big);
        if (status == TN_OK)
            puts++;
        else
            nap_ms(1);
    }
    assert_int_equal(status, TN_NO_MEMORY);
    assert_in_range(puts, 1000, 1400); /* more: the client sends on and does not hear that the store is full */
    uint32_t bytes = 0;
    assert_int_equal(get_wait(&b[1], "big.999", NULL, &bytes), TN_OK);
    assert_int_equal(bytes, sizeof big);
    for (int i = 0; i < 2; i++)
        tn_store_goodbye(stores[i]);
}

static void test_bootstrap(void **state)
{
    struct tn_store *stores[3];
    struct tn_bootstrap b[3];
    join_all(stores, b, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(b[i].struct_size, sizeof b[i]);
        assert_int_equal(b[i].rank, i);
        assert_int_equal(b[i].size, 3);
        assert_int_equal(b[i].local_rank, i);
        assert_int_equal(b[i].local_size, 3);
        assert_true(b[i].host_id == b[0].host_id && b[i].host_id != 0);
        assert_true(b[i].job_id == b[0].job_id);
        assert_int_equal(b[i].poll(b[i].ctx), TN_OK);
        assert_null(tn_store_death(stores[i], NULL));
    }
    uint64_t job_id = b[0].job_id;
    for (int i = 0; i < 3; i++)
        tn_store_goodbye(stores[i]);
    tn_store_stop(server);
    join_all(stores, b, 1);
    assert_true(b[0].job_id != job_id);
    tn_store_goodbye(stores[0]);
}

/* Without a reason from the launcher the others hear of a death by themselves, a little later. */
static void test_dropped(void **state)
{
    struct tn_store *stores[3];
    struct tn_bootstrap b[3];
    int32_t rank = -2;
    char value[8];
    uint32_t bytes = sizeof value;
    join_all(stores, b, 3);
    assert_int_equal(b[0].get(b[0].ctx, "never", value, &bytes), TN_PENDING);
    uint64_t began = tn_now_ns();
    tn_store_drop(stores[1]);
    assert_string_equal(hear_death(stores[0], &rank), "rank 1 is gone: its connection closed without goodbye");
    assert_true(tn_now_ns() - began >= second_ns / 5);
    assert_int_equal(rank, 1);
    assert_string_equal(hear_death(stores[2], &rank), "rank 1 is gone: its connection closed without goodbye");
    assert_int_equal(b[2].poll(b[2].ctx), TN_PEER);
    assert_int_equal(get_wait(&b[0], "never", value, &bytes), TN_PEER);
    tn_store_goodbye(stores[0]);
    tn_store_goodbye(stores[2]);
}

static int is_mourned(int32_t rank)
{
    pthread_mutex_lock(&server->lock);
    int mourned = server->members[rank].mourned;
    pthread_mutex_unlock(&server->lock);
    return mourned;
}

/* The launcher's reason comes after the drop and is the one that all hear, also who joins later; a second death,
 * noticed later, does not overtake the first. */
static void test_buried(void **state)
{
    int32_t rank;
    serve(4);
    tn_store_expect_reasons(server, 2 * patience_ns);
    struct tn_store *stores[4] = { join(0, 4), join(1, 4), join(2, 4) };
    tn_store_drop(stores[1]);
    while (!is_mourned(1))
        nap_ms(1);
    tn_store_bury(server, 2, "exited with code 1");
    tn_store_bury(server, 1, "was killed by signal 9 (Killed)");
    tn_store_bury(server, 1, "was something else");
    tn_store_bury(server, 99, "does not exist");
    assert_string_equal(hear_death(stores[0], &rank), "rank 1 was killed by signal 9 (Killed)");
    stores[3] = join(3, 4);
    assert_string_equal(hear_death(stores[3], &rank), "rank 1 was killed by signal 9 (Killed)");
    assert_int_equal(rank, 1);
    struct tn_bootstrap boot;
    assert_int_equal(tn_store_bootstrap(stores[3], patience_ns, &boot), TN_PEER);
    tn_store_goodbye(stores[0]);
    tn_store_goodbye(stores[2]);
    tn_store_goodbye(stores[3]);
}

static void test_goodbye(void **state)
{
    struct tn_store *stores[2];
    struct tn_bootstrap b[2];
    join_all(stores, b, 2);
    tn_store_goodbye(stores[0]);
    tn_store_ended(server, 0);
    nap_ms(400);
    assert_null(tn_store_death(stores[1], NULL));
    assert_int_equal(tn_store_wait_empty(server, second_ns / 100), 0);
    tn_store_goodbye(stores[1]);
    assert_int_equal(tn_store_wait_empty(server, patience_ns), 1);
}

static void test_ended_early(void **state)
{
    serve(2);
    struct tn_store *store = join(0, 2);
    tn_store_ended(server, 1);
    assert_string_equal(hear_death(store, NULL), "rank 1 ended before the job was done");
    tn_store_goodbye(store);
}

static void test_server_lost(void **state)
{
    struct tn_store *stores[2];
    struct tn_bootstrap b[2];
    char expected[128];
    int32_t rank;
    uint32_t bytes = 0;
    join_all(stores, b, 2);
    tn_store_served_by(stores[1], 0);
    tn_store_stop(server);
    server = NULL;
    snprintf(expected, sizeof expected, "rank 0 is gone: its store at 127.0.0.1:%u closed the connection", port);
    assert_string_equal(hear_death(stores[1], &rank), expected);
    assert_int_equal(rank, 0);
    assert_non_null(strstr(hear_death(stores[0], &rank), "the launcher is gone"));
    assert_int_equal(rank, -1);
    tn_store_served_by(stores[0], 0);
    assert_string_equal(hear_death(stores[0], &rank), expected);
    assert_int_equal(rank, 0);
    assert_int_equal(b[0].put(b[0].ctx, "key", "v", 1), TN_PEER);
    assert_int_equal(b[0].get(b[0].ctx, "key", NULL, &bytes), TN_PEER);
    uint64_t began = tn_now_ns();
    tn_store_goodbye(stores[0]);
    tn_store_goodbye(stores[1]);
    assert_true(tn_now_ns() - began < 2 * second_ns); /* no answer to a goodbye is waited for */
}

static void test_missing(void **state)
{
    struct tn_bootstrap boot;
    char ranks[64];
    serve(7);
    struct tn_store *stores[2] = { join(0, 7), join(2, 7) };
    assert_int_equal(tn_store_bootstrap(stores[0], second_ns / 20, &boot), TN_TIMEOUT);
    tn_store_missing(stores[0], ranks, sizeof ranks);
    assert_string_equal(ranks, "1, 3-6");
    tn_store_bury_missing(server, "has not joined in time");
    assert_string_equal(hear_death(stores[1], NULL), "rank 1 has not joined in time");
    tn_store_goodbye(stores[0]);
    tn_store_goodbye(stores[1]);
}

static void test_refused(void **state)
{
    struct tn_store *store, *none;
    char long_token[200];
    memset(long_token, 't', sizeof long_token);
    long_token[sizeof long_token - 1] = 0;
    serve(2);
    uint64_t began = tn_now_ns();
    const char *wrong[] = { "a token for test", "a token for tests!", "A token for tests", "", "x" };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(try_join(&none, wrong[i], 0, 2), TN_CONFLICT);
        assert_null(none);
        assert_non_null(strstr(error, "does not accept the token; TENON_TOKEN must be the same"));
    }
    assert_int_equal(try_join(&none, long_token, 0, 2), TN_INVALID);
    assert_non_null(strstr(error, "use 1 to 128"));
    assert_int_equal(try_join(&none, TOKEN, 0, 3), TN_CONFLICT);
    assert_non_null(strstr(error, "its job has 2 ranks, this is rank 0 of 3"));
    assert_int_equal(try_join(&none, TOKEN, 2, 2), TN_CONFLICT);
    assert_int_equal(try_join(&none, TOKEN, -1, 2), TN_CONFLICT);
    assert_int_equal(try_join(&store, TOKEN, 1, 2), TN_OK);
    assert_int_equal(try_join(&none, TOKEN, 1, 2), TN_CONFLICT);
    assert_non_null(strstr(error, "rank 1 has joined already"));
    assert_true(tn_now_ns() - began < patience_ns); /* that is what a connection that is not refused would wait */
    tn_store_goodbye(store);
}

static void test_bad_server(void **state)
{
    struct tn_store_server *other;
    struct tn_store *none;
    char long_token[200];
    memset(long_token, 't', sizeof long_token);
    long_token[sizeof long_token - 1] = 0;
    serve(1);
    assert_int_equal(tn_store_serve(&other, "127.0.0.1", &port, TOKEN, 1, error, sizeof error), TN_IO);
    assert_null(other);
    assert_non_null(strstr(error, "Address already in use"));
    uint16_t any = 0;
    assert_int_equal(tn_store_serve(&other, "127.0.0.1", &any, "", 1, error, sizeof error), TN_INVALID);
    assert_int_equal(tn_store_serve(&other, "127.0.0.1", &any, long_token, 1, error, sizeof error), TN_INVALID);
    assert_int_equal(tn_store_serve(&other, "192.0.2.1", &any, TOKEN, 1, error, sizeof error), TN_INVALID);
    /* Bound to the given address alone. */
    assert_int_equal(tn_store_connect(&none, "127.0.0.2", port, TOKEN, 0, 1, second_ns / 10, error, sizeof error),
                     TN_TIMEOUT);
    assert_non_null(strstr(error, "Connection refused"));
    assert_int_equal(tn_store_serve(&other, NULL, &any, TOKEN, 1, error, sizeof error), TN_OK);
    struct tn_store *store;
    assert_int_equal(tn_store_connect(&store, "127.0.0.2", any, TOKEN, 0, 1, patience_ns, error, sizeof error), TN_OK);
    tn_store_goodbye(store);
    tn_store_stop(other);
}

static void *greet(void *arg)
{
    int fd;
    while ((fd = accept(*(int *)arg, NULL, NULL)) >= 0) {
        ssize_t sent = send(fd, "SSH-2.0-Other\r\n", 15, MSG_NOSIGNAL);
        (void)sent;
        nap_ms(50);
        close(fd);
    }
    return NULL;
}

/* What listens there is another program: one that greets, and one that only accepts. */
static void test_other_program(void **state)
{
    struct sockaddr_in at = { .sin_family = AF_INET };
    socklen_t bytes = sizeof at;
    struct tn_store *none;
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    port = ntohs(at.sin_port);
    assert_int_equal(tn_store_connect(&none, "127.0.0.1", port, TOKEN, 0, 1, second_ns / 5, error, sizeof error),
                     TN_TIMEOUT);
    assert_non_null(strstr(error, "accepted the connection but did not answer"));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, greet, &fd), 0);
    assert_int_equal(try_join(&none, TOKEN, 0, 1), TN_CONFLICT);
    assert_non_null(strstr(error, "not a Tenon store; is the port taken by another program?"));
    shutdown(fd, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(fd);
}

static void test_garbage(void **state)
{
    static char noise[100000];
    static const char *const lines[] = { "GET / HTTP/1.1\r\n\r\n", "TENONST2xxxxxxxxxxxxxxxx", "\n",
                                         /* HELLO with an oversized key, with oversized data, a PUT before HELLO */
                                         "TENONST1\1\0\xff\xff\0\0\0\0\0\0\0\0",
                                         "TENONST1\1\0\0\0\xff\xff\xff\xff\0\0\0\0",
                                         "TENONST1\2\0\1\0\1\0\0\0\0\0\0\0kv" };
    static const size_t bytes[] = { 18, 24, 1, 20, 20, 22 };
    serve(2);
    struct tn_store *store = join(0, 2);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        int fd = dial();
        assert_int_equal(send(fd, lines[i], bytes[i], MSG_NOSIGNAL), bytes[i]);
        expect_closed(fd);
    }
    unsigned seed = 1;
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < sizeof noise; i++)
            noise[i] = (char)((seed = seed * 1103515245u + 12345u) >> 16);
        if (round % 2)
            memcpy(noise, "TENONST1\1\0", 10);
        int fd = dial();
        ssize_t sent = send(fd, noise, sizeof noise, MSG_NOSIGNAL);
        assert_true(sent != 0);
        shutdown(fd, SHUT_WR);
        expect_closed(fd);
    }
    struct tn_store *second = join(1, 2);
    struct tn_bootstrap boot;
    assert_int_equal(tn_store_bootstrap(store, patience_ns, &boot), TN_OK);
    assert_null(tn_store_death(store, NULL));
    tn_store_goodbye(store);
    tn_store_goodbye(second);
}

/* Connections that say nothing: a rank still gets in at once, and they do not stay for ever. */
static void test_silent_strangers(void **state)
{
    enum { STRANGERS = 300 };
    int fds[STRANGERS];
    serve(1);
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = dial();
        if (i % 2)
            assert_int_equal(send(fds[i], "TENON", 5, MSG_NOSIGNAL), 5);
    }
    uint64_t began = tn_now_ns();
    tn_store_goodbye(join(0, 1));
    expect_closed(fds[0]); /* the oldest had to yield */
    assert_true(tn_now_ns() - began < soon_ns);
    for (int i = 1; i < STRANGERS - 1; i++)
        close(fds[i]);
    char byte;
    assert_int_equal(recv(fds[STRANGERS - 1], &byte, 1, 0), 0);
    close(fds[STRANGERS - 1]);
}

static void test_bad_member(void **state)
{
    int32_t rank;
    serve(2);
    struct tn_store *store = join(0, 2);
    int fd = dial_as(1, 2);
    assert_int_equal(send(fd, "no frame at all....", 19, MSG_NOSIGNAL), 19);
    assert_string_equal(hear_death(store, &rank), "rank 1 sent the store something that is not a request");
    expect_closed(fd);
    tn_store_goodbye(store);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MANY = 512, SLOWER = 10 };
#else
enum { MANY = 512, SLOWER = 1 };
#endif

/* What this process has computed, which no other one adds to. */
static uint64_t cpu_ns(void)
{
    struct timespec spent;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return (uint64_t)spent.tv_sec * second_ns + (uint64_t)spent.tv_nsec;
}

/* A member that asks and does not read holds up nobody. */
static void test_slow_member(void **state)
{
    struct tn_store *stores[1];
    struct tn_bootstrap boot;
    static char big[TN_STORE_VALUE_MAX];
    struct tn_buf ask;
    serve(2);
    stores[0] = join(0, 2);
    int fd = dial_as(1, 2);
    assert_int_equal(tn_store_bootstrap(stores[0], patience_ns, &boot), TN_OK);
    assert_int_equal(boot.put(boot.ctx, "big", big, sizeof big), TN_OK);
    tn_buf_init(&ask);
    for (int i = 0; i < 300; i++)
        tn_wire_add(&ask, TN_WIRE_GET, 0, "big", 3, NULL, 0);
    assert_int_equal(send(fd, ask.text, ask.length, MSG_NOSIGNAL), ask.length);
    uint32_t bytes = 0;
    assert_int_equal(boot.put(boot.ctx, "key", "v", 1), TN_OK);
    assert_int_equal(get_wait(&boot, "key", NULL, &bytes), TN_OK);
    for (int i = 0; i < 2000; i++)
        tn_wire_add(&ask, TN_WIRE_GET, 0, "big", 3, NULL, 0);
    assert_int_equal(send(fd, ask.text, ask.length, MSG_NOSIGNAL), ask.length);
    assert_string_equal(hear_death(stores[0], NULL), "rank 1 stopped reading what it asked the store for");
    tn_buf_finish(&ask);
    close(fd);
    tn_store_goodbye(stores[0]);
}

static void *one_of_many(void *arg)
{
    int32_t rank = (int32_t)(intptr_t)arg;
    struct tn_store *store;
    struct tn_bootstrap b;
    char key[32], why[256];
    int32_t value = rank;
    uint32_t bytes = sizeof value;
    if (tn_store_connect(&store, "127.0.0.1", port, TOKEN, rank, MANY, patience_ns, why, sizeof why) != TN_OK)
        return "connect";
    if (tn_store_bootstrap(store, patience_ns, &b) != TN_OK || b.local_rank != rank || b.local_size != MANY)
        return "bootstrap";
    snprintf(key, sizeof key, "many.%d", (int)rank);
    if (b.put(b.ctx, key, &value, sizeof value) != TN_OK)
        return "put";
    snprintf(key, sizeof key, "many.%d", (int)(rank + 1) % MANY);
    if (get_wait(&b, key, &value, &bytes) != TN_OK || value != (rank + 1) % MANY)
        return "get";
    tn_store_goodbye(store);
    return NULL;
}

/* In two seconds of the processor, clients and all. */
static void test_many(void **state)
{
    pthread_t threads[MANY];
    int failures = 0;
    struct rlimit files;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_cur < 4 * MANY)
        skip();
    serve(MANY);
    uint64_t began = tn_now_ns(), cpu_began = cpu_ns();
    for (intptr_t i = 0; i < MANY; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, one_of_many, (void *)i), 0);
    for (int i = 0; i < MANY; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        failures += failed != NULL;
    }
    uint64_t spent = cpu_ns() - cpu_began;
    print_message("%d clients in %.0f ms, %.0f of the processor\n", MANY, (double)(tn_now_ns() - began) / 1e6,
                  (double)spent / 1e6);
    assert_int_equal(failures, 0);
    assert_true(spent <= 2 * second_ns * SLOWER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_values, stop),
        cmocka_unit_test_teardown(test_sizes, stop),
        cmocka_unit_test_teardown(test_full, stop),
        cmocka_unit_test_teardown(test_bootstrap, stop),
        cmocka_unit_test_teardown(test_dropped, stop),
        cmocka_unit_test_teardown(test_buried, stop),
        cmocka_unit_test_teardown(test_goodbye, stop),
        cmocka_unit_test_teardown(test_ended_early, stop),
        cmocka_unit_test_teardown(test_server_lost, stop),
        cmocka_unit_test_teardown(test_missing, stop),
        cmocka_unit_test_teardown(test_refused, stop),
        cmocka_unit_test_teardown(test_bad_server, stop),
        cmocka_unit_test_teardown(test_other_program, stop),
        cmocka_unit_test_teardown(test_garbage, stop),
        cmocka_unit_test_teardown(test_silent_strangers, stop),
        cmocka_unit_test_teardown(test_bad_member, stop),
        cmocka_unit_test_teardown(test_slow_member, stop),
        cmocka_unit_test_teardown(test_many, stop),
    };
    alarm(400); /* a hang is a failure */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
