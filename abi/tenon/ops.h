/* Core opcodes, numbered by their row in ops.def. Rows are only ever appended, so numbers
 * are stable; opcodes of plugins are given by the host from TN_OP_FIRST_PLUGIN on. */
#ifndef TENON_OPS_H
#define TENON_OPS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TN_OP_NONE = 0,
#define TN_OP(name, NAME, ins, outs, attrs, alias, shape, place, grad, cost, lower, doc) TN_OP_##NAME,
#include <tenon/ops.def>
#undef TN_OP
    TN_OP_CORE_END,
    TN_OP_FIRST_PLUGIN = 0x10000
};

#ifdef __cplusplus
}
#endif
#endif
