/* The plain host (plainhost.h). */
#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plainhost.h"

static void log_line(const struct tn_host *host, int32_t level, const char *fmt, ...)
{
    (void)host;
    if (level < TN_LOG_WARN)
        return;
    va_list args;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

static tn_status fail(const struct tn_host *host, tn_status status, const char *fmt, ...)
{
    struct plainhost *h = host->ctx;
    va_list args;
    va_start(args, fmt);
    vsnprintf(h->message, sizeof h->message, fmt, args);
    va_end(args);
    for (struct plainhost *above = h->above; above; above = above->above)
        memcpy(above->message, h->message, sizeof h->message);
    return status;
}

static void problem(const struct tn_host *host, const char *key, const char *what, const char *fix)
{
    (void)host;
    fprintf(stderr, "%s: %s; %s\n", key, what, fix);
}

static void *alloc(const struct tn_host *host, uint64_t bytes)
{
    (void)host;
    return malloc(bytes);
}

static void release(const struct tn_host *host, void *memory)
{
    (void)host;
    free(memory);
}

static const struct tn_option *find_option(const struct plainhost *h, const char *key)
{
    for (uint32_t i = 0; i < h->plugin->option_count; i++) {
        const struct tn_option *o =
            (const struct tn_option *)((const char *)h->plugin->options + (size_t)i * h->plugin->option_stride);
        if (strcmp(o->key, key) == 0)
            return o;
    }
    fprintf(stderr, "plugin %s asks for its unknown option %s\n", h->plugin->id, key);
    abort();
}

/* The text of an option: overridden, or its default. */
static const char *option_text(const struct tn_host *host, const char *key)
{
    struct plainhost *h = host->ctx;
    const struct tn_option *o = find_option(h, key);
    size_t length = strlen(key);
    for (const char *at = h->overrides; at && *at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL) {
        if (strncmp(at, key, length) != 0 || at[length] != '=')
            continue;
        snprintf(h->text, sizeof h->text, "%.*s", (int)strcspn(at + length + 1, " "), at + length + 1);
        return h->text;
    }
    return o->fallback ? o->fallback : "";
}

static int64_t get_int(const struct tn_host *host, const char *key)
{
    const char *text = option_text(host, key);
    const struct tn_option *o = find_option(host->ctx, key);
    if (strcmp(text, "auto") == 0)
        return -1;
    if (o->type == TN_OPT_BOOL)
        return strcmp(text, "true") == 0 || strcmp(text, "on") == 0 || strcmp(text, "yes") == 0;
    for (int64_t i = 0; o->type == TN_OPT_ENUM && o->choices[i]; i++)
        if (strcmp(o->choices[i], text) == 0)
            return i;
    char *unit;
    double value = strtod(text, &unit);
    static const struct {
        const char *name;
        double factor;
    } units[] = { { "K", 1024 }, { "M", 1048576 }, { "G", 1073741824 }, { "us", 1e3 }, { "ms", 1e6 }, { "s", 1e9 } };
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(unit, units[i].name) == 0)
            value *= units[i].factor;
    return (int64_t)llround(value);
}

static double get_float(const struct tn_host *host, const char *key)
{
    const char *text = option_text(host, key);
    return strcmp(text, "auto") == 0 ? -1 : strtod(text, NULL);
}

static uint32_t get_list(const struct tn_host *host, const char *key, const char *const **items)
{
    static const char *const none[] = { NULL };
    (void)option_text(host, key);
    *items = none;
    return 0;
}

static tn_status open_backend(const struct tn_host *host, const char *name, const struct tn_collective **table,
                              void **self)
{
    struct plainhost *h = host->ctx;
    return h->open(h, name, table, self);
}

static const char *below(const struct tn_host *host)
{
    const struct plainhost *h = host->ctx;
    return h->plugin->id;
}

static const void *get_api(const struct tn_host *host, const char *id)
{
    static const struct tn_backends_api backends = { sizeof backends, open_backend, below };
    const struct plainhost *h = host->ctx;
    return h->open && strcmp(id, "tn.backends/1") == 0 ? &backends : NULL;
}

void plainhost_init(struct plainhost *h, const struct tn_plugin *plugin)
{
    memset(h, 0, sizeof *h);
    h->plugin = plugin;
    h->host = (struct tn_host){ .struct_size = sizeof h->host,
                                .abi_major = TN_ABI_MAJOR,
                                .abi_minor = TN_ABI_MINOR,
                                .ctx = h,
                                .log = log_line,
                                .fail = fail,
                                .problem = problem,
                                .alloc = alloc,
                                .release = release,
                                .get_int = get_int,
                                .get_float = get_float,
                                .get_string = option_text,
                                .get_list = get_list,
                                .get_api = get_api };
}

const struct tn_plugin *plainhost_load(const char *path, uint32_t kind)
{
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!file) {
        fprintf(stderr, "%s\n", dlerror());
        return NULL;
    }
    const struct tn_plugin *(*query)(const struct tn_host_info *);
    *(void **)&query = dlsym(file, TN_PLUGIN_ENTRY);
    struct tn_host_info info = { sizeof info, TN_ABI_MAJOR, TN_ABI_MINOR, "test" };
    const struct tn_plugin *plugin = query ? query(&info) : NULL;
    if (!plugin || plugin->magic != TN_PLUGIN_MAGIC || plugin->kind != kind || plugin->abi_major != TN_ABI_MAJOR) {
        fprintf(stderr, "%s: not a plugin of this kind and ABI\n", path);
        return NULL;
    }
    return plugin;
}
