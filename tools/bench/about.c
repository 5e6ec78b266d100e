/* What a figure is worth only with: host, ranks and their cores, backends, versions (bench.h). */
#include "bench.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* What each rank says of itself. */
struct card {
    char host[64];
    int32_t pid, local_rank;
    uint64_t host_id;
    char cores[64]; /* "0-3, 8" */
};

void bench_pin(const struct bench_world *w)
{
    cpu_set_t have, want;
    if (sched_getaffinity(0, sizeof have, &have) != 0 || CPU_COUNT(&have) == 0)
        return;
    int skip = w->joined.bootstrap.local_rank % CPU_COUNT(&have), core = 0;
    for (; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &have) && skip-- == 0)
            break;
    CPU_ZERO(&want);
    CPU_SET(core, &want);
    sched_setaffinity(0, sizeof want, &want);
}

static void cores_of_this(char *text, size_t bytes)
{
    cpu_set_t set;
    size_t at = 0;
    text[0] = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    for (int core = 0; core < CPU_SETSIZE && at + 16 < bytes; core++) {
        if (!CPU_ISSET(core, &set))
            continue;
        int last = core;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set))
            last++;
        at += (size_t)snprintf(text + at, bytes - at, last > core ? "%s%d-%d" : "%s%d", at ? ", " : "", core, last);
        core = last;
    }
}

static void processor(char *text, size_t bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    snprintf(text, bytes, "unknown processor");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':')) {
            snprintf(text, bytes, "%s", strchr(line, ':') + 2);
            text[strcspn(text, "\n")] = 0;
            break;
        }
    if (file)
        fclose(file);
}

/* MiB of the cache of that level that a core reaches; 0: not known. (sysconf adds up those of all sockets and dies.) */
static double cache_mib(int level)
{
    double kib = 0;
    for (int index = 0; index < 8; index++) {
        char path[96];
        int is_level = 0, found = 0;
        unsigned long size = 0;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", index);
        FILE *file = fopen(path, "re");
        if (file && fscanf(file, "%d", &found) == 1)
            is_level = found == level;
        if (file)
            fclose(file);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
        file = is_level ? fopen(path, "re") : NULL;
        if (file && fscanf(file, "%luK", &size) == 1)
            kib = (double)size;
        if (file)
            fclose(file);
    }
    return kib / 1024;
}

static json_t *host_json(void)
{
    char cpu[128];
    struct utsname os;
    processor(cpu, sizeof cpu);
    uname(&os);
    return json_pack("{s:s, s:i, s:f, s:f, s:f, s:s}", "processor", cpu, "cores", (int)sysconf(_SC_NPROCESSORS_ONLN),
                     "l2_mib", cache_mib(2), "l3_mib", cache_mib(3), "memory_mib",
                     (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 1048576.0, "system", os.release);
}

void bench_about_add(json_t *about, const char *name, struct tn_job *job)
{
    struct tn_instance *plugin[TN_MOST_PLUGINS];
    uint32_t n = tn_job_plugins(job, plugin);
    for (uint32_t i = 0; i < n; i++) {
        const struct tn_plugin *p = plugin[i]->library.plugin;
        if (p && p->kind == TN_PLUGIN_COLLECTIVE)
            json_array_append_new(json_object_get(about, "backends"),
                                  json_pack("{s:s, s:s, s:s, s:s, s:s}", "backend", name, "plugin", p->id, "version",
                                            p->version, "path", plugin[i]->library.path, "build", p->build_info));
    }
}

json_t *bench_about(const struct bench_options *o, struct bench_world *w)
{
    struct card mine = { .pid = getpid(),
                         .local_rank = w->joined.bootstrap.local_rank,
                         .host_id = w->joined.bootstrap.host_id };
    struct card *all = w->rank == 0 ? bench_alloc((size_t)w->n * sizeof *all) : NULL;
    gethostname(mine.host, sizeof mine.host - 1);
    cores_of_this(mine.cores, sizeof mine.cores);
    bench_gather(w, &mine, sizeof mine, all);
    if (w->rank != 0)
        return NULL;
    json_t *ranks = json_array();
    int hosts = 0;
    for (int32_t r = 0; r < w->n; r++) {
        hosts += all[r].local_rank == 0;
        json_array_append_new(ranks, json_pack("{s:i, s:s, s:i, s:s}", "rank", r, "host", all[r].host, "pid",
                                               all[r].pid, "cores", all[r].cores));
    }
    free(all);
    return json_pack("{s:s, s:s, s:o, s:i, s:i, s:b, s:s, s:o, s:o}", "tenon", TENON_VERSION, "compiler", __VERSION__,
                     "host", host_json(), "ranks", w->n, "hosts", hosts, "pinned_by_us", o->pin, "memory",
                     o->from_heap ? "heap" : "backend", "rank_table", ranks, "backends", json_array());
}

/* Ranks that may run on the same cores of the same host, as one line. */
static void print_ranks(const json_t *table, FILE *out)
{
    for (size_t i = 0; i < json_array_size(table);) {
        const json_t *first = json_array_get(table, i);
        const char *host = json_string_value(json_object_get(first, "host"));
        const char *cores = json_string_value(json_object_get(first, "cores"));
        size_t end = i + 1;
        for (; end < json_array_size(table); end++) {
            const json_t *next = json_array_get(table, end);
            if (strcmp(json_string_value(json_object_get(next, "host")), host) != 0 ||
                strcmp(json_string_value(json_object_get(next, "cores")), cores) != 0)
                break;
        }
        if (end - i > 1)
            fprintf(out, "#   ranks %zu-%zu on %s: cores %s\n", i, end - 1, host, cores);
        else
            fprintf(out, "#   rank %zu on %s: core%s %s\n", i, host, strpbrk(cores, "-,") ? "s" : "", cores);
        i = end;
    }
}

void bench_about_print(const json_t *about, FILE *out)
{
    const json_t *host = json_object_get(about, "host"), *backends = json_object_get(about, "backends");
    fprintf(out, "# tenon %s, Linux %s, %s, %d cores, L2 %.4g MiB, L3 %.4g MiB\n",
            json_string_value(json_object_get(about, "tenon")), json_string_value(json_object_get(host, "system")),
            json_string_value(json_object_get(host, "processor")),
            (int)json_integer_value(json_object_get(host, "cores")), json_real_value(json_object_get(host, "l2_mib")),
            json_real_value(json_object_get(host, "l3_mib")));
    int ranks = (int)json_integer_value(json_object_get(about, "ranks"));
    int hosts = (int)json_integer_value(json_object_get(about, "hosts"));
    fprintf(out, "# %d rank%s on %d host%s\n", ranks, ranks > 1 ? "s" : "", hosts, hosts > 1 ? "s" : "");
    print_ranks(json_object_get(about, "rank_table"), out);
    for (size_t i = 0; i < json_array_size(backends); i++) {
        const json_t *part = json_array_get(backends, i);
        fprintf(out, "# backend %s: %s %s (%s), %s\n", json_string_value(json_object_get(part, "backend")),
                json_string_value(json_object_get(part, "plugin")), json_string_value(json_object_get(part, "version")),
                json_string_value(json_object_get(part, "build")), json_string_value(json_object_get(part, "path")));
    }
}
