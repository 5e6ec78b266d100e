/* Ops that plugins registered (abi/tenon/op_register.h): a table that only grows, for the life of the process. */
#ifndef TENON_OPS_PLUGIN_H
#define TENON_OPS_PLUGIN_H

#include <tenon/op_register.h>

#include "program/ops.h"

/* TN_OK with *opcode, or TN_INVALID, TN_CONFLICT or TN_NO_MEMORY with `error`. `plugin`: who registers. */
tn_status tn_op_add(const char *plugin, const struct tn_op_definition *definition, uint32_t *opcode, char *error,
                    size_t error_bytes);
const struct tn_op_kind *tn_op_plugin_kind(uint32_t opcode); /* NULL for an unknown one */
uint32_t tn_op_plugin_find(const char *name);                /* TN_OP_NONE if unknown */

#endif
