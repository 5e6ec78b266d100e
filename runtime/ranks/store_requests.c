/* Store server, requests: a stranger becomes a member, members put and get, and say goodbye; see store_server.h. */
#include "ranks/store_server.h"

#include <stdio.h>
#include <string.h>

/* The time it takes does not tell how much of the token was right. */
static int token_matches(const struct tn_store_server *s, const struct tn_frame *hello)
{
    char shown[TN_STORE_TOKEN_MAX] = { 0 };
    size_t bytes = hello->key_bytes < sizeof shown ? hello->key_bytes : sizeof shown;
    memcpy(shown, hello->key, bytes);
    volatile unsigned char differs = hello->key_bytes != s->token_bytes;
    for (size_t i = 0; i < sizeof shown; i++)
        differs |= (unsigned char)(shown[i] ^ s->token[i]);
    return differs == 0;
}

static void refuse(struct tn_store_server *s, struct tn_store_conn *conn, tn_status status, const char *why)
{
    tn_wire_greet(&conn->wire.out);
    tn_wire_add(&conn->wire.out, TN_WIRE_REFUSED, status, NULL, 0, why, strlen(why));
    tn_wire_flush(&conn->wire); /* small: the socket takes it at once */
    tn_store_close(s, conn, NULL);
}

/* All are here: each learns its place among the ranks of its host. */
static void tell_ready(struct tn_store_server *s)
{
    for (int32_t rank = 0; rank < s->world; rank++) {
        int32_t local_rank = 0, local_size = 0;
        for (int32_t other = 0; other < s->world; other++)
            if (s->members[other].host_id == s->members[rank].host_id) {
                local_rank += other < rank;
                local_size++;
            }
        char data[4];
        tn_wire_put_u32(data, (uint32_t)local_size);
        if (s->members[rank].conn)
            tn_store_queue(s, s->members[rank].conn, TN_WIRE_READY, local_rank, NULL, 0, data, sizeof data);
    }
}

static void admit(struct tn_store_server *s, struct tn_store_conn *conn, int32_t rank, uint64_t host_id)
{
    struct tn_store_member *member = &s->members[rank];
    tn_store_unlink_stranger(s, conn);
    conn->rank = rank;
    member->conn = conn;
    member->host_id = host_id;
    s->joined++;
    pthread_mutex_lock(&s->lock);
    member->joined = 1;
    s->connected++;
    pthread_mutex_unlock(&s->lock);

    char job_id[8];
    tn_wire_put_u64(job_id, s->job_id);
    tn_wire_greet(&conn->wire.out);
    tn_store_queue(s, conn, TN_WIRE_WELCOME, 0, NULL, 0, job_id, sizeof job_id);
    for (int32_t i = 0; i < s->told; i++)
        tn_store_queue_death(s, conn, &s->deaths[i]);
    if (s->joined == s->world)
        tell_ready(s);
}

static void on_hello(struct tn_store_server *s, struct tn_store_conn *conn, const struct tn_frame *hello)
{
    char why[TN_STORE_REASON_BYTES];
    if (hello->type != TN_WIRE_HELLO || hello->data_bytes != TN_WIRE_HELLO_BYTES) {
        tn_store_close(s, conn, NULL);
        return;
    }
    if (!token_matches(s, hello)) {
        refuse(s, conn, TN_CONFLICT,
               "it does not accept the token; TENON_TOKEN must be the same on all ranks of a job");
        return;
    }
    uint32_t version = tn_wire_u32(hello->data);
    int32_t rank = hello->number, world = (int32_t)tn_wire_u32(hello->data + 4);
    if (version != TN_WIRE_VERSION) {
        snprintf(why, sizeof why,
                 "it speaks version %d of the protocol, this rank version %u; install one Tenon on all hosts",
                 TN_WIRE_VERSION, (unsigned)version);
        refuse(s, conn, TN_CONFLICT, why);
    } else if (world != s->world || rank < 0 || rank >= world) {
        snprintf(why, sizeof why,
                 "its job has %d ranks, this is rank %d of %d; WORLD_SIZE must be the same on all ranks", (int)s->world,
                 (int)rank, (int)world);
        refuse(s, conn, TN_CONFLICT, why);
    } else if (s->members[rank].joined) {
        snprintf(why, sizeof why, "rank %d has joined already; RANK must differ from rank to rank", (int)rank);
        refuse(s, conn, TN_CONFLICT, why);
    } else {
        admit(s, conn, rank, tn_wire_u64(hello->data + 8));
    }
}

static void on_put(struct tn_store_server *s, struct tn_store_conn *conn, const struct tn_frame *put)
{
    struct tn_store_entry *entry = tn_store_table_find(&s->table, put->key, put->key_bytes, 1);
    if (entry && entry->present)
        return;
    if (!entry || tn_store_table_set(&s->table, entry, put->data, put->data_bytes) < 0) {
        tn_store_queue(s, conn, TN_WIRE_FULL, 0, put->key, put->key_bytes, NULL, 0);
        return;
    }
    for (uint32_t i = 0; i < entry->waiting_count; i++) {
        struct tn_store_conn *waiting = s->members[entry->waiting[i]].conn;
        if (waiting)
            tn_store_queue(s, waiting, TN_WIRE_VALUE, 0, put->key, put->key_bytes, put->data, put->data_bytes);
    }
    entry->waiting_count = 0;
}

static void on_get(struct tn_store_server *s, struct tn_store_conn *conn, const struct tn_frame *get)
{
    struct tn_store_entry *entry = tn_store_table_find(&s->table, get->key, get->key_bytes, 1);
    if (entry && entry->present)
        tn_store_queue(s, conn, TN_WIRE_VALUE, 0, get->key, get->key_bytes, entry->data, entry->bytes);
    else if (!entry || tn_store_table_wait(&s->table, entry, conn->rank) < 0)
        tn_store_queue(s, conn, TN_WIRE_FULL, 0, get->key, get->key_bytes, NULL, 0);
}

static void on_who(struct tn_store_server *s, struct tn_store_conn *conn)
{
    struct tn_buf list;
    tn_buf_init(&list);
    for (int32_t first = 0, last; first < s->world && list.length < 1024; first = last + 1) {
        last = first;
        if (s->members[first].joined)
            continue;
        while (last + 1 < s->world && !s->members[last + 1].joined)
            last++;
        tn_buf_printf(&list, last > first ? "%s%d-%d" : "%s%d", list.length ? ", " : "", (int)first, (int)last);
    }
    tn_store_queue(s, conn, TN_WIRE_MISSING, 0, NULL, 0, list.text, list.length);
    tn_buf_finish(&list);
}

static void on_goodbye(struct tn_store_server *s, struct tn_store_conn *conn)
{
    pthread_mutex_lock(&s->lock);
    s->members[conn->rank].left = 1;
    pthread_mutex_unlock(&s->lock);
    tn_store_queue(s, conn, TN_WIRE_GOODBYE, 0, NULL, 0, NULL, 0);
}

void tn_store_on_frame(struct tn_store_server *s, struct tn_store_conn *conn, const struct tn_frame *frame)
{
    if (conn->rank < 0)
        on_hello(s, conn, frame);
    else if (frame->type == TN_WIRE_PUT)
        on_put(s, conn, frame);
    else if (frame->type == TN_WIRE_GET)
        on_get(s, conn, frame);
    else if (frame->type == TN_WIRE_WHO)
        on_who(s, conn);
    else if (frame->type == TN_WIRE_GOODBYE)
        on_goodbye(s, conn);
    else
        tn_store_close(s, conn, "sent the store something that is not a request");
}
