/* Timeline: what the ranks of a pipeline do when, from their bound programs alone.
 *
 * Each rank's program is walked as the executor walks it: ops take the time that their cost rules say (FLOPs, at one a
 * unit of time), messages along the axis of stages none, and a rank waits where its plan waits. A message is done when
 * both sides have started it. Other communication is left out, for ranks of one stage do it alike. So a timeline shows
 * a schedule's bubble, and that no rank waits for ever. */
#ifndef TENON_TIMELINE_H
#define TENON_TIMELINE_H

#include "passes/plan.h"

/* Ops of one region, stage and micro-batch; on a rank they follow one another. */
struct tn_timeline_slot {
    uint32_t region;
    int32_t rank, stage, micro; /* rank: of the axis */
    double begin, end, work;    /* work: end - begin without waiting */
};

struct tn_timeline_rank;

struct tn_timeline {
    struct tn_arena memory;
    int32_t ranks, stages, micro_batches;
    struct tn_timeline_rank *rank;
    struct tn_timeline_slot *slot; /* rank by rank, in the order they run */
    size_t n_slots, cap_slots;
    double end;
};

/* Shares of the time from the first slot to the last, over all ranks. */
struct tn_bubble {
    double idle;    /* all waiting: bubble + unequal */
    double bubble;  /* what even the busiest rank waits */
    double unequal; /* what the others wait more, because their stages are cheaper */
    double formula; /* bubble of p ranks with v stages each and m micro-batches, by the mean costs of a stage's forward
                       F, backward B and weight W: x / (1 + x) with x = (p - 1) (F + B - W) / (v m (F + B + W)) of the
                       ideal time (Narayanan et al. 2021, Qi et al. 2024) */
};

/* The axis of stages, or -1. */
int32_t tn_stage_axis(const struct tn_mesh *mesh);

void tn_timeline_init(struct tn_timeline *t, int32_t ranks);
/* Adds the program of the rank at coordinate `rank` of the axis of stages; each once, in order. */
void tn_timeline_add(struct tn_timeline *t, int32_t rank, const struct tn_plan *plan);
/* Sets begin and end of all slots. `in_order`: as if a backend did the messages of a rank on one channel strictly one
 * after another, the hardest case. TN_CONFLICT: two sides of a message differ; TN_TIMEOUT: ranks would wait for ever;
 * both with a text. */
tn_status tn_timeline_run(struct tn_timeline *t, int in_order, char *error, size_t error_bytes);
struct tn_bubble tn_timeline_bubble(const struct tn_timeline *t);
void tn_timeline_finish(struct tn_timeline *t);

#endif
