/* Host: the table through which one plugin instance reaches back, and the instance's life; see loader.h.
 *
 * A plugin's mistakes (a key that its table lacks, a value of another type) are answered with 0 and reported as its
 * own; they never end the process here. */
#include "loader/loader.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "program/ops.h"
#include "program/ops_plugin.h"
#include "program/program_api.h"

#include <tenon/plan.h>

static pthread_mutex_t message_lock = PTHREAD_MUTEX_INITIALIZER;

static struct tn_instance *instance_of(const struct tn_host *host)
{
    return host->ctx;
}

static const char *id_of(const struct tn_instance *instance)
{
    return instance->library.plugin->id;
}

/* ---- messages ---- */

static void host_log(const struct tn_host *host, int32_t level, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    tn_vlog(level < TN_LOG_DEBUG   ? TN_LOG_DEBUG
            : level > TN_LOG_ERROR ? TN_LOG_ERROR
                                   : level,
            id_of(instance_of(host)), fmt, args);
    va_end(args);
}

static tn_status host_fail(const struct tn_host *host, tn_status status, const char *fmt, ...)
{
    struct tn_instance *instance = instance_of(host);
    va_list args;
    va_start(args, fmt);
    pthread_mutex_lock(&message_lock);
    vsnprintf(instance->message, sizeof instance->message, fmt, args);
    pthread_mutex_unlock(&message_lock);
    va_end(args);
    return status;
}

static void host_problem(const struct tn_host *host, const char *key, const char *what, const char *fix)
{
    struct tn_instance *instance = instance_of(host);
    tn_diag_add(instance->diag, tn_manifest_where(instance->manifest, id_of(instance), key && *key ? key : NULL), fix,
                "%s", what ? what : "the plugin reports a problem and does not say which");
}

/* The instance, or one that it stands on, that has a message. */
static struct tn_instance *speaker(struct tn_instance *instance)
{
    struct tn_instance *found = instance->message[0] ? instance : NULL;
    if (!found && instance->next)
        found = speaker(instance->next);
    for (uint32_t i = 0; i < instance->n_opened && !found; i++)
        found = speaker(instance->opened[i]);
    return found;
}

const char *tn_instance_message(struct tn_instance *instance)
{
    pthread_mutex_lock(&message_lock);
    struct tn_instance *spoke = speaker(instance);
    instance = spoke ? spoke : instance;
    if (instance->message[0])
        snprintf(instance->report, sizeof instance->report, "%s", instance->message);
    else
        snprintf(instance->report, sizeof instance->report,
                 "failed without saying why; that is a fault of the plugin %s (it must call host->fail)",
                 id_of(instance));
    instance->message[0] = 0;
    pthread_mutex_unlock(&message_lock);
    return instance->report;
}

/* ---- memory ---- */

static void *host_alloc(const struct tn_host *host, uint64_t bytes)
{
    return bytes <= SIZE_MAX ? calloc(1, bytes ? (size_t)bytes : 1) : NULL;
}

static void host_release(const struct tn_host *host, void *memory)
{
    free(memory);
}

/* ---- options ---- */

/* The value, or NULL after a report if the plugin asks for what its table does not have. */
static const struct tn_option_value *value_of(const struct tn_host *host, const char *key, uint32_t types)
{
    struct tn_instance *instance = instance_of(host);
    const struct tn_option_value *value = tn_options_find(&instance->options, key);
    if (value && (types >> value->option->type & 1))
        return value;
    tn_diag_add(
        instance->diag, tn_manifest_where(instance->manifest, id_of(instance), NULL), "the fault is in its code",
        value ? "the plugin reads its option %.60s as another type" : "the plugin reads %.60s, no option of its table",
        key);
    return NULL;
}

static int64_t host_get_int(const struct tn_host *host, const char *key)
{
    const struct tn_option_value *value =
        value_of(host, key,
                 1u << TN_OPT_INT | 1u << TN_OPT_BOOL | 1u << TN_OPT_SIZE | 1u << TN_OPT_DURATION | 1u << TN_OPT_ENUM);
    return value ? value->i : 0;
}

static double host_get_float(const struct tn_host *host, const char *key)
{
    const struct tn_option_value *value = value_of(host, key, 1u << TN_OPT_FLOAT);
    return value ? value->f : 0;
}

static const char *host_get_string(const struct tn_host *host, const char *key)
{
    const struct tn_option_value *value = value_of(host, key, 1u << TN_OPT_STRING | 1u << TN_OPT_ENUM);
    return value ? value->s : "";
}

static uint32_t host_get_list(const struct tn_host *host, const char *key, const char *const **items)
{
    const struct tn_option_value *value = value_of(host, key, 1u << TN_OPT_LIST);
    *items = value ? value->list : NULL;
    return value ? value->list_count : 0;
}

/* ---- larger tables ---- */

static int64_t facts_get(const struct tn_host *host, const char *name, int64_t missing)
{
    const struct tn_facts *facts = instance_of(host)->facts;
    return facts ? facts->get(facts, name, missing) : missing;
}

static const struct tn_trials *trials_of(const struct tn_host *host)
{
    const struct tn_facts *facts = instance_of(host)->facts;
    return facts ? facts->trials : NULL;
}

static int64_t plan_budget(const struct tn_host *host)
{
    return trials_of(host) ? trials_of(host)->budget(instance_of(host)->facts) : 0;
}

static int64_t plan_peak(const struct tn_host *host, struct tn_program *copy, uint32_t flags)
{
    return trials_of(host) ? trials_of(host)->peak(instance_of(host)->facts, instance_of(host), copy, flags) : -1;
}

static int32_t plan_unaided(const struct tn_program *p)
{
    return p->unaided;
}

static double plan_away(const struct tn_host *host, uint64_t bytes)
{
    return trials_of(host) ? trials_of(host)->away(instance_of(host)->facts, instance_of(host), bytes) : -1;
}

static tn_status backends_open(const struct tn_host *host, const char *name, const struct tn_collective **table,
                               void **self)
{
    struct tn_instance *by = instance_of(host), *found = NULL;
    if (!by->opener || by->self)
        return host_fail(host, TN_INVALID, "backends can be opened by a backend, in its create, alone");
    if (by->n_opened == TN_MOST_OPENED)
        return host_fail(host, TN_INVALID, "a backend can stand on %d others at most", TN_MOST_OPENED);
    tn_status status = by->opener->open(by->opener, by, name, &found);
    if (status != TN_OK)
        return status;
    by->opened[by->n_opened++] = found;
    *table = tn_instance_table(found);
    *self = found->self;
    return TN_OK;
}

static const char *backends_below(const struct tn_host *host)
{
    const struct tn_instance *instance = instance_of(host);
    while (instance->next)
        instance = instance->next;
    return id_of(instance);
}

static tn_status ops_add(const struct tn_host *host, const struct tn_op_definition *definition, uint32_t *opcode)
{
    char error[256];
    tn_status status = tn_op_add(id_of(instance_of(host)), definition, opcode, error, sizeof error);
    return status == TN_OK ? TN_OK : host_fail(host, status, "%s", error);
}

static const void *host_get_api(const struct tn_host *host, const char *id)
{
    static const struct tn_facts_api facts = { sizeof facts, facts_get };
    static const struct tn_plan_api plan = {
        .struct_size = sizeof plan,
        .budget = plan_budget,
        .copy = tn_program_copy,
        .drop = tn_program_drop,
        .peak = plan_peak,
        .seconds = tn_program_seconds,
        .away = plan_away,
        .unaided = plan_unaided,
    };
    static const struct tn_backends_api backends = { sizeof backends, backends_open, backends_below };
    static const struct tn_ops_api ops = { sizeof ops, ops_add, tn_op_by_name };
    if (strcmp(id, "tn.ops/1") == 0)
        return &ops;
    if (strcmp(id, "tn.plan/1") == 0)
        return &plan;
    if (strcmp(id, "tn.facts/1") == 0)
        return &facts;
    return strcmp(id, "tn.backends/1") == 0 ? &backends : tn_program_api_get(id);
}

int tn_host_has_api(const char *id)
{
    return host_get_api(NULL, id) != NULL;
}

/* ---- the instance ---- */

void tn_instance_init(struct tn_instance *instance, const struct tn_library *library, struct tn_manifest *m,
                      struct tn_diag *diag)
{
    const struct tn_plugin *plugin = library->plugin;
    *instance = (struct tn_instance){ .library = *library, .manifest = m, .diag = diag };
    instance->host = (struct tn_host){
        .struct_size = sizeof instance->host,
        .abi_major = TN_ABI_MAJOR,
        .abi_minor = library->minor,
        .ctx = instance,
        .log = host_log,
        .fail = host_fail,
        .problem = host_problem,
        .alloc = host_alloc,
        .release = host_release,
        .get_int = host_get_int,
        .get_float = host_get_float,
        .get_string = host_get_string,
        .get_list = host_get_list,
        .get_api = host_get_api,
    };
    tn_options_read(&instance->options, m, plugin->id, plugin->options, plugin->option_count, plugin->option_stride,
                    diag);
}

static tn_status call_create(struct tn_instance *instance, const struct tn_instance *next)
{
    const void *table = tn_instance_table(instance);
    const struct tn_host *host = &instance->host;
    switch (instance->library.plugin->kind) {
    case TN_PLUGIN_STRATEGY: return ((const struct tn_strategy *)table)->create(host, &instance->self);
    case TN_PLUGIN_COLLECTIVE:
        return ((const struct tn_collective *)table)
            ->create(host, next ? tn_instance_table(next) : NULL, next ? next->self : NULL, &instance->self);
    case TN_PLUGIN_DEVICE: return ((const struct tn_device *)table)->create(host, &instance->self);
    default: return ((const struct tn_model *)table)->create(host, &instance->self);
    }
}

enum tn_load tn_instance_create(struct tn_instance *instance, struct tn_instance *next, struct tn_load_error *error)
{
    instance->message[0] = 0;
    instance->self = NULL;
    instance->next = next;
    tn_status status = call_create(instance, next);
    *error = (struct tn_load_error){ 0 };
    if (status == TN_OK)
        return TN_LOAD_OK;
    instance->self = NULL;
    uint32_t kind = instance->library.plugin->kind;
    int no_device = status == TN_UNSUPPORTED && (kind == TN_PLUGIN_DEVICE || kind == TN_PLUGIN_COLLECTIVE);
    error->reason = no_device ? TN_LOAD_UNSUPPORTED_DEVICE : TN_LOAD_INIT_FAILED;
    snprintf(error->text, sizeof error->text, "%s: %s: %s (status %d)", tn_load_name(error->reason),
             instance->library.path, tn_instance_message(instance), status);
    return error->reason;
}

void tn_instance_destroy(struct tn_instance *instance)
{
    const void *table = instance->library.plugin ? tn_instance_table(instance) : NULL;
    if (!table || !instance->self)
        return;
    switch (instance->library.plugin->kind) {
    case TN_PLUGIN_STRATEGY: ((const struct tn_strategy *)table)->destroy(instance->self); break;
    case TN_PLUGIN_COLLECTIVE: ((const struct tn_collective *)table)->destroy(instance->self); break;
    case TN_PLUGIN_DEVICE: ((const struct tn_device *)table)->destroy(instance->self); break;
    default: ((const struct tn_model *)table)->destroy(instance->self);
    }
    instance->self = NULL;
}
