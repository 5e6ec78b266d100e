/* The command line of tenon bench (bench.h). Letters and their meaning are those of nccl-tests where it has them. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/options.h"
#include "program/ops.h"

static const char *const op_names[BENCH_OPS] = { "all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                                 "broadcast",  "send_recv",  "barrier" };
static const char *const red_names[] = { "sum", "max" };
static const char *const command_names[] = { "comm", "latency", "bandwidth" };

const char *bench_op_name(int op)
{
    return op_names[op];
}

const char *bench_red_name(uint32_t red)
{
    return red_names[red];
}

static const char comm_usage[] =
    "usage: tenon bench comm [OPERATION...] [OPTIONS]\n"
    "       tenon bench comm --job JOB.ini [OPTIONS]\n"
    "\n"
    "Times collectives: all_reduce (default), all_gather, reduce_scatter, all_to_all, broadcast, send_recv (each rank\n"
    "to the next), barrier, or all. Exit code 1 if a result was wrong.\n"
    "\n"
    "  -p, --ranks N          processes to start on this host (default: the cores, at least 2)\n"
    "  --backends A,B,...     plugins side by side (default shm); layers before a +: verify+shm\n"
    "  -b, --minbytes SIZE    smallest size (default 8); K, M, G are powers of 1024\n"
    "  -e, --maxbytes SIZE    largest size (default 16M)\n"
    "  -f, --stepfactor F     from size to size (default 4)   -i, --stepbytes SIZE  adds instead\n"
    "  -n, --iters N          timed calls of each backend (default: as many as take --seconds, 20 to 1000)\n"
    "  --seconds S            see -n (default 0.2)\n"
    "  -w, --warmup_iters N   calls before them (default 5)\n"
    "  -c, --check N          calls whose results are checked first (default 1; 0: none)\n"
    "  -o, --op sum|max|all   reduction (default sum)\n"
    "  -d, --datatype TYPE    f32 (default; or float), bf16, f64, i32, i64, a list of them, or all\n"
    "  -r, --root N|all       of broadcast (default 0)\n"
    "  --buffers warm|cold|both  cold: out of all caches before each call (default warm)\n"
    "  --memory backend|heap  where buffers come from (default: as for a job)\n"
    "  --pin                  binds each rank to a core\n"
    "  --timeout S            a rank that waits longer for the others gives up (default 60)\n"
    "  --idle S               also: how much of a core ranks use that wait S seconds for a late one\n"
    "  --manifest FILE, --set SECTION.KEY=VALUE   options of the backends\n"
    "  --json[=FILE], --csv[=FILE], --svg FILE    without FILE: on stdout, in place of the table\n"
    "  --job JOB.ini          replays the collectives of one step of that job, first alone, then between kernels\n"
    "                         that take the time that its device expects, times --compute FACTOR (default 1);\n"
    "                         with -p, --set, --backends (default: the manifest's), -n, -w, --seconds, --json, --csv,\n"
    "                         --timeout (between steps; inside of one: --set comm.timeout=S)\n"
    "\n"
    "Columns. size: bytes of the larger of a rank's two buffers. count: elements per rank. time: median over the "
    "calls\n"
    "of the slowest rank's time, in microseconds. algbw: size / time. busbw: algbw x 2(n-1)/n for all_reduce, (n-1)/n\n"
    "for all_gather, reduce_scatter, all_to_all, 1 for broadcast, send_recv. #wrong: elements of all ranks that are "
    "not\n"
    "exactly what they must be; N/A: not checked. Out of place, then in place. p99: 99th percentile of what time is "
    "the\n"
    "median of. skew: median over the calls of the time between the first and the last rank's entry. ceil%: share of\n"
    "what the memory of this host gave in the same run for the bytes that the operation must load and store, out of\n"
    "place / in place; from 64 KiB on. ratio: time / time of the first backend, median over blocks of calls that took\n"
    "turns, and its 95% interval. p99, skew and ratio are of out of place where there is one; --json and --csv have\n"
    "both. GB = 1e9 bytes.\n";

static const char p2p_usage[] =
    "usage: tenon bench latency|bandwidth [OPTIONS]\n"
    "\n"
    "latency: rank 0 and 1 send a message to and fro; time is half of a round trip. bandwidth: rank 0 sends\n"
    "--window messages, rank 1 answers with a small one; then both send to each other at once.\n"
    "\n"
    "  -p, --ranks N          processes to start on this host (default 2); only 0 and 1 send\n"
    "  --backends A,B,...     plugins side by side (default shm); layers before a +: verify+shm\n"
    "  -b, -e, -f, -i         sizes, as in tenon bench comm (default 1 to 4M by factor 2; latency: to 64K)\n"
    "  -n, --iters N          timed round trips or windows of each backend (default: as many as take --seconds)\n"
    "  --seconds S, -w N, -c N, --timeout S, --memory, --pin, --manifest, --set, --json, --csv, --svg: as in tenon "
    "bench comm\n"
    "  --window N             bandwidth: messages under way at once (default 64)\n"
    "\n"
    "Columns. size: bytes of a message. time: median, in microseconds (latency); p99 and least likewise. one way: "
    "bytes\n"
    "per second that arrive at rank 1, GB/s; both ways: those at rank 0 and rank 1 together; msg/s: messages per "
    "second,\n"
    "one way. #wrong: bytes that are not what was sent. ratio: of times, this backend / the first one, and its 95%\n"
    "interval.\n";

/* ---- values ---- */

static int wrong(const char *option, const char *value, const char *use)
{
    fprintf(stderr, "tenon bench: %s %s: use %s\n", option, value, use);
    return TOOL_USAGE;
}

static int read_number(const char *option, const char *value, int64_t least, int64_t most, int64_t *number)
{
    char *end;
    long long n = strtoll(value, &end, 10);
    char use[80];
    snprintf(use, sizeof use, "a whole number from %lld to %lld", (long long)least, (long long)most);
    if (!*value || *end || n < least || n > most)
        return wrong(option, value, use);
    *number = n;
    return -1;
}

static int read_size(const char *option, const char *value, uint64_t *size)
{
    char *end;
    double number = strtod(value, &end), unit = 1;
    if (end != value && *end && strchr("kKmMgG", *end)) {
        unit = *end == 'k' || *end == 'K' ? 1024.0 : *end == 'm' || *end == 'M' ? 1048576.0 : 1073741824.0;
        end++;
    }
    if (end == value || *end || !(number >= 0) || number * unit > 1e13)
        return wrong(option, value, "a size in bytes, such as 8, 64K or 16M");
    *size = (uint64_t)(number * unit);
    return -1;
}

static int read_real(const char *option, const char *value, double above, double *number)
{
    char *end, use[64];
    double n = strtod(value, &end);
    snprintf(use, sizeof use, "a number above %g", above);
    if (end == value || *end || !(n > above) || !isfinite(n))
        return wrong(option, value, use);
    *number = n;
    return -1;
}

/* The next word of a list; NULL at its end. */
static const char *next_word(const char **list, char *word, size_t bytes)
{
    if (!*list)
        return NULL;
    size_t length = strcspn(*list, ",");
    snprintf(word, bytes, "%.*s", (int)length, *list);
    *list = (*list)[length] ? *list + length + 1 : NULL;
    return word;
}

static int add_op(struct bench_options *o, const char *word)
{
    if (strcmp(word, "all") == 0) {
        for (o->n_ops = 0; o->n_ops < BENCH_OPS; o->n_ops++)
            o->op[o->n_ops] = o->n_ops;
        return -1;
    }
    for (int op = 0; op < BENCH_OPS; op++) {
        if (strcmp(word, op_names[op]) != 0)
            continue;
        for (int i = 0; i < o->n_ops; i++)
            if (o->op[i] == op)
                return -1;
        o->op[o->n_ops++] = op;
        return -1;
    }
    const char *nearest = tn_nearest(word, op_names, BENCH_OPS);
    fprintf(stderr, "tenon bench: unknown operation %s; ", word);
    fprintf(stderr, nearest ? "did you mean %s?\n" : "see tenon bench comm --help\n", nearest);
    return TOOL_USAGE;
}

/* nccl-tests' -o is the reduction; who writes an operation there means that. */
static int read_op(struct bench_options *o, const char *option, const char *value)
{
    char word[64];
    o->n_reds = 0;
    while (next_word(&value, word, sizeof word)) {
        if (strcmp(word, "all") == 0) {
            o->red[0] = TN_RED_SUM;
            o->red[1] = TN_RED_MAX;
            o->n_reds = 2;
        } else if (strcmp(word, "sum") == 0 || strcmp(word, "max") == 0) {
            o->red[o->n_reds < 2 ? o->n_reds++ : 1] = *word == 's' ? TN_RED_SUM : TN_RED_MAX;
        } else {
            int known = 0;
            for (int op = 0; op < BENCH_OPS; op++)
                known |= strcmp(word, op_names[op]) == 0;
            if (!known)
                return wrong(option, word, "sum, max or all; operations are arguments of their own");
            add_op(o, word);
        }
    }
    if (o->n_reds == 0)
        o->n_reds = 1;
    return -1;
}

static int read_dtypes(struct bench_options *o, const char *option, const char *value)
{
    static const char *const theirs[][2] = {
        { "float", "f32" }, { "bfloat16", "bf16" }, { "double", "f64" }, { "int32", "i32" }, { "int64", "i64" }
    };
    static const uint32_t reducible[] = { TN_F32, TN_BF16, TN_F64, TN_I32, TN_I64 };
    char word[32];
    o->n_dtypes = 0;
    while (next_word(&value, word, sizeof word)) {
        if (strcmp(word, "all") == 0) {
            for (o->n_dtypes = 0; o->n_dtypes < 5; o->n_dtypes++)
                o->dtype[o->n_dtypes] = reducible[o->n_dtypes];
            continue;
        }
        for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++)
            if (strcmp(word, theirs[i][0]) == 0)
                snprintf(word, sizeof word, "%s", theirs[i][1]);
        uint32_t dtype = tn_dtype_by_name(word), known = 0;
        for (int i = 0; i < 5; i++)
            known |= reducible[i] == dtype;
        if (!known || o->n_dtypes == BENCH_MOST_DTYPES)
            return wrong(option, word, "f32, bf16, f64, i32, i64 or all");
        o->dtype[o->n_dtypes++] = dtype;
    }
    return -1;
}

/* In a copy: the launcher hands this command line on to the ranks. */
static int read_backends(struct bench_options *o, const char *option, const char *value)
{
    char *word = o->backend_text;
    if (strlen(value) >= sizeof o->backend_text)
        return wrong(option, "...", "shorter names of plugins");
    strcpy(word, value);
    for (o->n_backends = 0; word; o->n_backends++) {
        if (o->n_backends == BENCH_MOST_BACKENDS)
            return wrong(option, "...", "at most 8 backends");
        o->backend[o->n_backends] = word;
        word = strchr(word, ',');
        if (word)
            *word++ = 0;
        if (!*o->backend[o->n_backends])
            return wrong(option, "", "names of plugins, such as shm,verify+shm");
    }
    return -1;
}

/* ---- options ---- */

enum { BOTH, ONLY_COMM, ONLY_BANDWIDTH };
static const struct {
    const char *letter, *name;
    int where;
} known[] = {
    { "-p", "--ranks", BOTH },
    { "-b", "--minbytes", BOTH },
    { "-e", "--maxbytes", BOTH },
    { "-f", "--stepfactor", BOTH },
    { "-i", "--stepbytes", BOTH },
    { "-n", "--iters", BOTH },
    { "-w", "--warmup_iters", BOTH },
    { "-c", "--check", BOTH },
    { "-o", "--op", ONLY_COMM },
    { "-d", "--datatype", ONLY_COMM },
    { "-r", "--root", ONLY_COMM },
    { "", "--backends", BOTH },
    { "", "--seconds", BOTH },
    { "", "--timeout", BOTH },
    { "", "--buffers", ONLY_COMM },
    { "", "--memory", BOTH },
    { "", "--idle", ONLY_COMM },
    { "", "--manifest", BOTH },
    { "", "--set", BOTH },
    { "", "--svg", BOTH },
    { "", "--job", ONLY_COMM },
    { "", "--compute", ONLY_COMM },
    { "", "--window", ONLY_BANDWIDTH },
};
enum { KNOWN = sizeof known / sizeof *known };

static int read_one(struct bench_options *o, const char *name, const char *value)
{
    int64_t n = 0;
    int code = -1;
    if (strcmp(name, "--ranks") == 0) {
        code = read_number(name, value, 1, BENCH_MOST_RANKS, &n);
        o->ranks = (int32_t)n;
    } else if (strcmp(name, "--minbytes") == 0)
        code = read_size(name, value, &o->least_bytes);
    else if (strcmp(name, "--maxbytes") == 0)
        code = read_size(name, value, &o->most_bytes);
    else if (strcmp(name, "--stepbytes") == 0)
        code = read_size(name, value, &o->step_bytes);
    else if (strcmp(name, "--stepfactor") == 0)
        code = read_real(name, value, 1, &o->factor);
    else if (strcmp(name, "--iters") == 0)
        code = read_number(name, value, 1, BENCH_MOST_ITERATIONS, &o->iterations);
    else if (strcmp(name, "--warmup_iters") == 0)
        code = read_number(name, value, 0, BENCH_MOST_ITERATIONS, &o->warmups);
    else if (strcmp(name, "--check") == 0)
        code = read_number(name, value, 0, BENCH_MOST_ITERATIONS, &o->checks);
    else if (strcmp(name, "--op") == 0)
        code = read_op(o, name, value);
    else if (strcmp(name, "--datatype") == 0)
        code = read_dtypes(o, name, value);
    else if (strcmp(name, "--root") == 0) {
        code = strcmp(value, "all") == 0 ? -1 : read_number(name, value, 0, BENCH_MOST_RANKS, &n);
        o->root = strcmp(value, "all") == 0 ? -1 : (int32_t)n;
    } else if (strcmp(name, "--backends") == 0)
        code = read_backends(o, name, value);
    else if (strcmp(name, "--seconds") == 0)
        code = read_real(name, value, 0, &o->seconds);
    else if (strcmp(name, "--timeout") == 0)
        code = read_real(name, value, 0, &o->timeout_seconds);
    else if (strcmp(name, "--idle") == 0)
        code = read_real(name, value, 0, &o->idle_seconds);
    else if (strcmp(name, "--compute") == 0)
        code = read_real(name, value, 0, &o->compute);
    else if (strcmp(name, "--window") == 0) {
        code = read_number(name, value, 1, 4096, &n);
        o->window = (int32_t)n;
    } else if (strcmp(name, "--memory") == 0) {
        o->from_heap = strcmp(value, "heap") == 0;
        code = o->from_heap || strcmp(value, "backend") == 0 ? -1 : wrong(name, value, "backend or heap");
    } else if (strcmp(name, "--buffers") == 0) {
        int both = strcmp(value, "both") == 0;
        o->n_caches = 1 + both;
        o->cold[0] = strcmp(value, "cold") == 0;
        o->cold[1] = 1;
        code = both || o->cold[0] || strcmp(value, "warm") == 0 ? -1 : wrong(name, value, "warm, cold or both");
    } else if (strcmp(name, "--manifest") == 0)
        o->manifest = value;
    else if (strcmp(name, "--job") == 0)
        o->job = value;
    else if (strcmp(name, "--svg") == 0)
        o->svg_file = value;
    else if (o->n_overrides == TOOL_MOST_OVERRIDES)
        code = wrong(name, "...", "a manifest for so many");
    else
        o->overrides[o->n_overrides++] = value;
    return code;
}

/* Options without a value, or with one behind "=". 0: none of them. */
static int read_flag(struct bench_options *o, const char *word)
{
    if (strcmp(word, "--pin") == 0)
        return o->pin = 1;
    if (strcmp(word, "--json") == 0)
        return o->json = 1;
    if (strcmp(word, "--csv") == 0)
        return o->csv = 1;
    if (strncmp(word, "--json=", 7) == 0 && word[7])
        return (o->json_file = word + 7) != NULL;
    if (strncmp(word, "--csv=", 6) == 0 && word[6])
        return (o->csv_file = word + 6) != NULL;
    return 0;
}

static int is_taken(const struct bench_options *o, int i)
{
    return known[i].where == BOTH || (known[i].where == ONLY_COMM && o->command == BENCH_COMM) ||
           (known[i].where == ONLY_BANDWIDTH && o->command == BENCH_BANDWIDTH);
}

static const char *find(const struct bench_options *o, const char *word)
{
    for (int i = 0; i < KNOWN; i++)
        if (is_taken(o, i) &&
            (strcmp(word, known[i].name) == 0 || (*known[i].letter && strcmp(word, known[i].letter) == 0)))
            return known[i].name;
    return NULL;
}

static int unknown(const struct bench_options *o, const char *word)
{
    const char *names[KNOWN + 4] = { "--help", "--pin", "--json", "--csv" };
    size_t n = 4;
    for (int i = 0; i < KNOWN; i++)
        if (is_taken(o, i))
            names[n++] = known[i].name;
    const char *nearest = tn_nearest(word, names, n);
    fprintf(stderr, "tenon bench %s: unknown option %s; ", command_names[o->command], word);
    if (nearest)
        fprintf(stderr, "did you mean %s?\n", nearest);
    else
        fprintf(stderr, "see tenon bench %s --help\n", command_names[o->command]);
    return TOOL_USAGE;
}

static void set_defaults(struct bench_options *o, int command)
{
    *o = (struct bench_options){ .command = command,
                                 .factor = command == BENCH_COMM ? 4 : 2,
                                 .least_bytes = 8,
                                 .most_bytes = UINT64_MAX,
                                 .warmups = 5,
                                 .checks = 1,
                                 .seconds = 0.2,
                                 .timeout_seconds = 60,
                                 .dtype = { TN_F32 },
                                 .n_dtypes = 1,
                                 .n_reds = 1,
                                 .n_caches = 1,
                                 .window = 64,
                                 .compute = 1 };
    if (command != BENCH_COMM)
        o->least_bytes = 1;
}

static int check(struct bench_options *o)
{
    uint64_t usual = o->command == BENCH_COMM ? 16u << 20 : o->command == BENCH_LATENCY ? 64u << 10 : 4u << 20;
    if (o->most_bytes == UINT64_MAX)
        o->most_bytes = o->least_bytes > usual ? o->least_bytes : usual;
    if (o->most_bytes < o->least_bytes) {
        fprintf(stderr, "tenon bench: --maxbytes %llu is below --minbytes %llu; use at least that\n",
                (unsigned long long)o->most_bytes, (unsigned long long)o->least_bytes);
        return TOOL_USAGE;
    }
    if (o->n_ops == 0)
        o->op[o->n_ops++] = BENCH_ALL_REDUCE;
    if (o->json && o->csv)
        return wrong("--json", "--csv", "only one of the two for stdout, and --csv=FILE or --json=FILE for the other");
    if (o->job && o->svg_file)
        return wrong("--svg", o->svg_file, "--json or --csv with --job: one step has no sizes to draw over");
    if (o->least_bytes == 0 && o->step_bytes == 0 && o->most_bytes > 0)
        return wrong("--minbytes", "0", "1 or more, as sizes grow by a factor");
    return -1;
}

int bench_options_read(struct bench_options *o, int command, int argc, char **argv)
{
    set_defaults(o, command);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(command == BENCH_COMM ? comm_usage : p2p_usage, stdout);
            return tool_printed(TOOL_DONE);
        }
        int code = -1;
        const char *name = find(o, argv[i]);
        if (name) {
            const char *value = tool_value(argc, argv, &i);
            code = value ? read_one(o, name, value) : TOOL_USAGE;
        } else if (*argv[i] == '-') {
            code = read_flag(o, argv[i]) ? -1 : unknown(o, argv[i]);
        } else if (command == BENCH_COMM) {
            char word[64];
            for (const char *list = argv[i]; code < 0 && next_word(&list, word, sizeof word);)
                code = add_op(o, word);
        } else {
            fprintf(stderr, "tenon bench %s: unknown argument %s; see tenon bench %s --help\n", command_names[command],
                    argv[i], command_names[command]);
            return TOOL_USAGE;
        }
        if (code >= 0)
            return code;
    }
    return check(o);
}

int bench_size(const struct bench_options *o, int at, uint64_t *bytes)
{
    double size = (double)o->least_bytes;
    if (o->step_bytes)
        size += (double)at * (double)o->step_bytes;
    else
        size *= pow(o->factor, at);
    if (size > (double)o->most_bytes + 0.5 || (at > 0 && !o->step_bytes && size <= 0))
        return 0;
    *bytes = (uint64_t)(size + 0.5);
    return 1;
}
