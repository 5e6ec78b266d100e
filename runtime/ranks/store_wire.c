/* Store wire: framing and buffering; see store_wire.h. */
#include "ranks/store_wire.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char magic[TN_WIRE_MAGIC_BYTES] = { 'T', 'E', 'N', 'O', 'N', 'S', 'T', '1' };

enum {
    FRAME_MAX = TN_WIRE_HEADER_BYTES + TN_STORE_KEY_MAX + TN_STORE_VALUE_MAX,
    IN_CAP = FRAME_MAX + 4096, /* room to read on while one frame is incomplete */
};

/* A host that lost power sends no FIN: probes find it within about 12 s. A stopped process still answers them. */
static void tune(int fd)
{
    int on = 1, idle_s = 5, interval_s = 2, probes = 3, unacknowledged_ms = 12000;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
}

int tn_wire_init(struct tn_wire *wire, int fd)
{
    tune(fd);
    *wire = (struct tn_wire){ .fd = fd, .in = malloc(IN_CAP) };
    tn_buf_init(&wire->out);
    return wire->in ? 0 : -1;
}

void tn_wire_finish(struct tn_wire *wire)
{
    if (wire->fd >= 0)
        close(wire->fd);
    wire->fd = -1;
    free(wire->in);
    wire->in = NULL;
    tn_buf_finish(&wire->out);
}

int tn_wire_fill(struct tn_wire *wire)
{
    if (wire->in_used > 0) {
        memmove(wire->in, wire->in + wire->in_used, wire->in_bytes - wire->in_used);
        wire->in_bytes -= wire->in_used;
        wire->in_used = 0;
    }
    ssize_t n = recv(wire->fd, wire->in + wire->in_bytes, IN_CAP - wire->in_bytes, 0);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    wire->in_bytes += (size_t)n;
    return n > 0 ? 1 : -1;
}

/* Magic is compared as far as it has come, so that a stranger is known by its first byte. */
static int greeting(struct tn_wire *wire)
{
    size_t have = wire->in_bytes < sizeof magic ? wire->in_bytes : sizeof magic;
    if (memcmp(wire->in, magic, have) != 0)
        return -1;
    if (have < sizeof magic)
        return 0;
    wire->in_used = sizeof magic;
    wire->greeted = 1;
    return 1;
}

int tn_wire_next(struct tn_wire *wire, struct tn_frame *frame)
{
    if (!wire->greeted) {
        int met = greeting(wire);
        if (met <= 0)
            return met;
    }
    const char *at = wire->in + wire->in_used;
    size_t have = wire->in_bytes - wire->in_used;
    if (have < TN_WIRE_HEADER_BYTES)
        return 0;
    uint16_t key_bytes;
    memcpy(&key_bytes, at + 2, sizeof key_bytes);
    frame->type = (uint8_t)at[0];
    frame->key_bytes = le16toh(key_bytes);
    frame->data_bytes = tn_wire_u32(at + 4);
    frame->number = (int32_t)tn_wire_u32(at + 8);
    if (at[1] != 0 || frame->key_bytes > TN_STORE_KEY_MAX || frame->data_bytes > TN_STORE_VALUE_MAX)
        return -1;
    size_t bytes = (size_t)TN_WIRE_HEADER_BYTES + frame->key_bytes + frame->data_bytes;
    if (have < bytes)
        return 0;
    frame->key = at + TN_WIRE_HEADER_BYTES;
    frame->data = frame->key + frame->key_bytes;
    wire->in_used += bytes;
    return 1;
}

int tn_wire_flush(struct tn_wire *wire)
{
    while (wire->out_sent < wire->out.length) {
        ssize_t n = send(wire->fd, wire->out.text + wire->out_sent, wire->out.length - wire->out_sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        wire->out_sent += (size_t)n;
    }
    if (wire->out.length > 0)
        tn_buf_clear(&wire->out);
    wire->out_sent = 0;
    return 1;
}

void tn_wire_greet(struct tn_buf *out)
{
    tn_buf_add(out, magic, sizeof magic);
}

void tn_wire_add(struct tn_buf *out, enum tn_wire_type type, int32_t number, const void *key, size_t key_bytes,
                 const void *data, size_t data_bytes)
{
    char header[TN_WIRE_HEADER_BYTES] = { (char)type };
    uint16_t short_bytes = htole16((uint16_t)key_bytes);
    memcpy(header + 2, &short_bytes, sizeof short_bytes);
    tn_wire_put_u32(header + 4, (uint32_t)data_bytes);
    tn_wire_put_u32(header + 8, (uint32_t)number);
    tn_buf_add(out, header, sizeof header);
    if (key_bytes > 0)
        tn_buf_add(out, key, key_bytes);
    if (data_bytes > 0)
        tn_buf_add(out, data, data_bytes);
}

void tn_wire_put_u32(char *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof value);
}

void tn_wire_put_u64(char *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof value);
}

uint32_t tn_wire_u32(const char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return le32toh(value);
}

uint64_t tn_wire_u64(const char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return le64toh(value);
}
