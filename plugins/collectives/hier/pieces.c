/* Pieces: each operation is cut into pieces, and each piece goes through three stages,
 *
 *     down     among the members of a host   (inner)
 *     across   among hosts                   (outer)
 *     up       among the members of a host   (inner)
 *
 * some of which have nothing to do. Pieces of all operations of a group form one sequence. Several are under way: one
 * is across while the next is down. A stage of a piece begins when its own stage before has ended and the piece before
 * has begun that stage; and each stage has groups of its own below, so the order in every one of them is that of the
 * sequence, on all members. Nothing here blocks. */
#include <string.h>

#include "hier.h"

struct tn_request *hier_request_new(struct tn_comm *c, const struct tn_call *a)
{
    const struct tn_host *host = c->hier->host;
    struct tn_request *r = c->unused, *next_made;
    if (r) {
        c->unused = r->next;
        next_made = r->next_made;
    } else {
        r = host->alloc(host, sizeof *r);
        if (!r)
            return NULL;
        next_made = c->made;
        c->made = r;
    }
    *r = (struct tn_request){
        .comm = c, .next_made = next_made, .call = *a, .esize = tn_call_dtype_bytes(a->dtype), .status = TN_PENDING
    };
    return r;
}

void hier_recycle(struct tn_request *r)
{
    r->next = r->comm->unused;
    r->comm->unused = r;
}

struct tn_comm *hier_comm_of(const struct piece *p)
{
    const struct tn_comm *c = p->op->comm;
    int stage = p->issued - 1;
    int goes_to_all = p->op->call.op == TN_CALL_ALL_TO_ALL && !c->is_even;
    return stage == DOWN ? c->down : stage == UP ? c->up : goes_to_all ? c->all : c->rail;
}

static struct piece *at(struct tn_comm *c, uint64_t number)
{
    return &c->pieces[number % WINDOW];
}

static void end_if_done(struct tn_request *r)
{
    if (!r->is_planned || r->pieces || r->status != TN_PENDING)
        return;
    r->status = TN_OK;
    struct tn_request **link = &r->comm->first;
    while (*link != r)
        link = &(*link)->next;
    *link = r->next;
    if (!r->next)
        r->comm->last = link;
}

/* Fills the window from the operations in their order. */
static void make_pieces(struct tn_comm *c)
{
    for (struct tn_request *r = c->first, *next; r && c->tail - c->head < WINDOW; r = next) {
        next = r->next;
        while (!r->is_planned && c->tail - c->head < WINDOW) {
            struct piece *p = at(c, c->tail);
            *p = (struct piece){ .op = r, .scratch = p->scratch, .scratch_bytes = p->scratch_bytes };
            if (!hier_cut(r, p)) {
                r->is_planned = 1;
                break;
            }
            r->pieces++;
            c->tail++;
        }
        end_if_done(r);
    }
}

/* Whether anything happened. */
static int advance_piece(struct tn_comm *c, uint64_t number)
{
    struct piece *p = at(c, number);
    int moved = 0;
    for (;;) {
        if (p->is_busy) {
            tn_status status = p->below ? p->side->table->test(p->below) : TN_OK;
            if (status == TN_PENDING)
                return moved;
            p->below = NULL;
            if (status != TN_OK) {
                hier_fail(c, p->op, p->side, hier_comm_of(p), status);
                return 0;
            }
            p->is_busy = 0;
            moved = 1;
            hier_ended(p, p->issued - 1);
        }
        if (p->issued == STAGES || (number > c->head && at(c, number - 1)->issued <= p->issued))
            return moved;
        p->below = NULL;
        p->is_busy = 1;
        p->issued++;
        tn_status status = hier_issue(p, p->issued - 1);
        if (status != TN_OK) {
            p->below = NULL;
            hier_fail(c, p->op, p->side, p->side ? hier_comm_of(p) : NULL, status);
            return 0;
        }
    }
}

static void retire(struct tn_comm *c)
{
    while (c->head < c->tail && at(c, c->head)->issued == STAGES && !at(c, c->head)->is_busy) {
        struct tn_request *r = at(c, c->head)->op;
        c->head++;
        r->pieces--;
        end_if_done(r);
    }
}

static void advance_comm(struct tn_comm *c)
{
    if (!c->failed && atomic_load(&c->aborted))
        hier_fail(c, NULL, NULL, NULL, TN_ABORTED);
    for (int moved = 1; moved && c->first && !c->failed;) {
        moved = 0;
        make_pieces(c);
        for (uint64_t i = c->head; i < c->tail && !c->failed; i++)
            moved |= advance_piece(c, i);
        if (!c->failed)
            retire(c);
    }
}

void hier_advance(struct hier *h)
{
    for (struct tn_comm *c = h->comms; c; c = c->next)
        advance_comm(c);
}

void hier_enqueue(struct tn_request *r)
{
    struct tn_comm *c = r->comm;
    r->next = NULL;
    r->number = c->number++;
    *c->last = r;
    c->last = &r->next;
}

struct piece *hier_waiting(struct tn_comm *c)
{
    for (uint64_t i = c->head; i < c->tail; i++)
        if (at(c, i)->is_busy && at(c, i)->below)
            return at(c, i);
    return NULL;
}

int hier_all_waiting(const struct hier *h)
{
    int n = 0;
    for (const struct tn_comm *c = h->comms; c; c = c->next)
        for (uint64_t i = c->head; i < c->tail; i++)
            n += c->pieces[i % WINDOW].below != NULL;
    return n;
}
