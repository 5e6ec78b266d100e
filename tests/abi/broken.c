/* One plugin source, built many times: each build sets one BROKEN_* and is wrong (or merely old, or new) in that one
 * way. test_loader.c says what the loader makes of each. Without any it is a good strategy. */
#include <stddef.h>
#include <string.h>

#include <tenon/device.h>
#include <tenon/plugin.h>
#include <tenon/strategy.h>

#ifndef ID
#define ID "good"
#endif

#ifdef BROKEN_UNDEFINED_SYMBOL
void nobody_defines_this(void);
#endif

static int instances;

static tn_status create(const struct tn_host *host, void **self)
{
#ifdef BROKEN_UNDEFINED_SYMBOL
    nobody_defines_this();
#endif
#ifdef BROKEN_CREATE_FAILS
    return host->fail(host, TN_INVALID, "no more than %d instances", instances);
#endif
#ifdef BROKEN_CREATE_SILENT
    return TN_ERROR;
#endif
    int64_t *size = host->alloc(host, sizeof *size);
    if (!size)
        return host->fail(host, TN_NO_MEMORY, "no memory");
#ifdef BROKEN_OPTIONS
    *size = host->get_int(host, "absent") + (int64_t)host->get_float(host, "size");
#else
    *size = host->get_int(host, "size");
#endif
    instances++;
    *self = size;
    return TN_OK;
}

static void destroy(void *self)
{
    instances -= self != NULL;
}

static tn_status axes(void *self, int32_t size, struct tn_axis *list, int32_t cap, int32_t *n)
{
    *n = (int32_t) * (int64_t *)self;
    return TN_OK;
}

static const struct tn_option options[] = {
    { sizeof(struct tn_option), TN_OPT_INT, TN_OPT_AUTO, 0, "size", "2", 1, 64, NULL, "Ranks." },
};

#ifdef OLDER
/* Beyond the size that the plugin gives: whoever reads it dies. */
static const char *const *const beyond = (void *)8;
#elif defined BROKEN_NEEDS
static const char *const needs[] = { "tn.facts/1", "com.example.unknown/1", NULL };
#else
static const char *const needs[] = { "tn.facts/1", NULL };
#endif

#ifdef BROKEN_DEVICE
static tn_status device_create(const struct tn_host *host, void **self)
{
    return host->fail(host, TN_UNSUPPORTED, "no such processor here");
}
static void nothing(void)
{
}
/* A device that never gets further than create: what else it has is never called. */
#define STUB (void *)nothing
static const struct tn_device table = {
    sizeof table, device_create, destroy, STUB, STUB, STUB, STUB, STUB, STUB, STUB,
    STUB,         STUB,          STUB,    STUB, STUB, STUB, STUB, STUB, STUB, NULL,
};
#elif defined BROKEN_FUNCTION
static const struct tn_strategy table = { .struct_size = sizeof table, .create = create };
#elif defined OLDER
/* As built before `axes` was in the table. */
static const struct tn_strategy table = { offsetof(struct tn_strategy, axes),
                                          create,
                                          destroy,
                                          (void *)1,
                                          (void *)1,
                                          (void *)1,
                                          (void *)1,
                                          (void *)1,
                                          (void *)1 };
#else
static const struct tn_strategy table = {
    .struct_size = sizeof table, .create = create, .destroy = destroy, .axes = axes
};
#endif

/* As a later Tenon would have it. */
struct later_plugin {
    struct tn_plugin now;
    const void *more[4];
};

/* clang-format off */
static const struct later_plugin plugin = { .more = { 0 }, .now = {
#ifdef BROKEN_MAGIC
    .magic = 0x12345678,
#else
    .magic = TN_PLUGIN_MAGIC,
#endif
#ifdef OLDER
    .struct_size = offsetof(struct tn_plugin, after),
    .needs = beyond,
    .conflicts = beyond,
#elif defined LATER
    .struct_size = sizeof(struct later_plugin),
    .needs = needs,
#elif defined BROKEN_SIZE
    .struct_size = offsetof(struct tn_plugin, id),
#else
    .struct_size = sizeof(struct tn_plugin),
    .needs = needs,
#endif
#ifdef BROKEN_MAJOR
    .abi_major = TN_ABI_MAJOR + 1,
#else
    .abi_major = TN_ABI_MAJOR,
#endif
#ifdef LATER
    .abi_minor = TN_ABI_MINOR + 3,
#elif defined OLDER
    .abi_minor = 0,
#else
    .abi_minor = TN_ABI_MINOR,
#endif
#ifdef BROKEN_MINOR
    .min_host_minor = TN_ABI_MINOR + 1,
#endif
#ifdef BROKEN_DEVICE
    .kind = TN_PLUGIN_DEVICE,
#elif defined BROKEN_KIND
    .kind = 77,
#else
    .kind = TN_PLUGIN_STRATEGY,
#endif
    .option_stride = sizeof(struct tn_option),
    .id = ID,
#ifndef BROKEN_PREFIX
    .version = "1.2.3",
#endif
    .summary = "A plugin for the loader's test.",
    .build_info = "",
#ifndef BROKEN_TABLE
    .table = &table,
#endif
    .options = options,
    .option_count = 1,
} };
/* clang-format on */

#ifdef BROKEN_ENTRY
const struct tn_plugin *another_name(const struct tn_host_info *host);
TN_EXPORT const struct tn_plugin *another_name(const struct tn_host_info *host)
#else
const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
#endif
{
#ifdef BROKEN_REFUSES
    return NULL;
#endif
#ifdef BROKEN_CRASHES
    static int *volatile nowhere;
    *nowhere = 1;
#endif
#ifdef BROKEN_HANGS
    for (volatile int on = 1; on;)
        ;
#endif
    return &plugin.now;
}
