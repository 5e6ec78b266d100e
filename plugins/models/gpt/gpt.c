/* gpt: the model plugin of the GPT-2 and Llama families.
 *
 * Reads its options, answers for the model's dimensions, reports what does not fit together,
 * and builds the forward program: inputs, embedding, layers (gpt2.c, llama.c), head, loss. */
#include <stdio.h>
#include <string.h>

#include "gpt.h"

static const char *const families[] = { "gpt2", "llama", NULL };
static const char *const tied_choices[] = { "auto", "true", "false", NULL };

#define OPTION(type, flags, key, fallback, min, max, choices, help)                      \
    {                                                                                    \
        sizeof(struct tn_option), type, flags, 0, key, fallback, min, max, choices, help \
    }

static const struct tn_option options[] = {
    OPTION(TN_OPT_ENUM, TN_OPT_REQUIRED, "family", NULL, 0, 0, families,
           "gpt2 (LayerNorm, learned positions, GELU, biases) or llama (RMSNorm, RoPE, SwiGLU)."),
    OPTION(TN_OPT_INT, TN_OPT_REQUIRED, "layers", NULL, 1, 10000, NULL, "Transformer layers."),
    OPTION(TN_OPT_INT, TN_OPT_REQUIRED, "hidden", NULL, 1, 1 << 20, NULL, "Width of the residual stream."),
    OPTION(TN_OPT_INT, TN_OPT_REQUIRED, "heads", NULL, 1, 1 << 16, NULL, "Query heads."),
    OPTION(TN_OPT_INT, TN_OPT_AUTO, "kv_heads", "auto", 1, 1 << 16, NULL,
           "Key and value heads, a divisor of heads; auto: as many as heads."),
    OPTION(TN_OPT_INT, TN_OPT_AUTO, "head_dim", "auto", 1, 1 << 16, NULL, "Width of a head; auto: hidden / heads."),
    OPTION(TN_OPT_INT, TN_OPT_AUTO, "mlp", "auto", 1, 1 << 22, NULL,
           "Inner width of the MLP; auto: 4 hidden for gpt2, 8/3 hidden rounded up to a multiple of 32 for llama."),
    OPTION(TN_OPT_INT, TN_OPT_REQUIRED, "vocab", NULL, 1, 1 << 28, NULL, "Tokens in the vocabulary."),
    OPTION(TN_OPT_INT, TN_OPT_AUTO, "positions", "auto", 1, 1 << 28, NULL,
           "Longest sequence, and rows of gpt2's position table; auto: 1024 for gpt2, the job's sequence for llama."),
    OPTION(TN_OPT_ENUM, 0, "tied", "auto", 0, 0, tied_choices,
           "Use the token embedding as the output head; auto: true for gpt2, false for llama."),
    OPTION(TN_OPT_FLOAT, TN_OPT_AUTO, "norm_eps", "auto", 1e-12, 1, NULL,
           "Added to the variance in norms; auto: 1e-5 for gpt2, 1e-6 for llama."),
    OPTION(TN_OPT_FLOAT, 0, "rope_theta", "10000", 1, 1e12, NULL, "Base of the rotary frequencies of llama."),
    OPTION(TN_OPT_BOOL, 0, "qkv_bias", "false", 0, 0, NULL, "Biases on the q, k and v projections of llama."),
    OPTION(TN_OPT_BOOL, 0, "qk_norm", "false", 0, 0, NULL, "RMSNorm on each head of q and k of llama, before RoPE."),
    OPTION(TN_OPT_FLOAT, 0, "dropout", "0", 0, 0.95, NULL,
           "Share of elements dropped after the embedding and after each half of a layer; 0: none."),
    OPTION(TN_OPT_FLOAT, 0, "init_std", "0.02", 1e-9, 10, NULL,
           "Standard deviation of initial weights; projections into the residual stream have it / sqrt(2 layers)."),
};

static int64_t or_auto(int64_t value, int64_t automatic)
{
    return value < 0 ? automatic : value;
}

static void read_options(struct gpt *g)
{
    const struct tn_host *host = g->host;
    g->family = (int)host->get_int(host, "family");
    int gpt2 = g->family == GPT_FAMILY_GPT2;
    g->layers = host->get_int(host, "layers");
    g->hidden = host->get_int(host, "hidden");
    g->heads = host->get_int(host, "heads");
    g->kv_heads = or_auto(host->get_int(host, "kv_heads"), g->heads);
    g->head_dim = or_auto(host->get_int(host, "head_dim"), g->heads > 0 ? g->hidden / g->heads : 0);
    g->mlp = or_auto(host->get_int(host, "mlp"), gpt2 ? 4 * g->hidden : (8 * g->hidden + 95) / 96 * 32);
    g->vocab = host->get_int(host, "vocab");
    g->positions = or_auto(host->get_int(host, "positions"), gpt2 ? 1024 : -1);
    int64_t tied = host->get_int(host, "tied");
    g->tied = tied == 0 ? gpt2 : tied == 1;
    g->norm_eps = host->get_float(host, "norm_eps");
    if (g->norm_eps < 0)
        g->norm_eps = gpt2 ? 1e-5 : 1e-6;
    g->rope_theta = host->get_float(host, "rope_theta");
    g->qkv_bias = (int)host->get_int(host, "qkv_bias");
    g->qk_norm = (int)host->get_int(host, "qk_norm");
    g->dropout = host->get_float(host, "dropout");
    g->init_std = host->get_float(host, "init_std");
}

static tn_status create(const struct tn_host *host, void **self)
{
    const struct tn_program_edit_api *edit = host->get_api(host, "tn.program_edit/1");
    const struct tn_facts_api *facts = host->get_api(host, "tn.facts/1");
    if (!edit || !facts)
        return host->fail(host, TN_UNSUPPORTED, "gpt needs a host with tn.program_edit/1 and tn.facts/1");
    struct gpt *g = host->alloc(host, sizeof *g);
    if (!g)
        return host->fail(host, TN_NO_MEMORY, "no memory for the model's description");
    memset(g, 0, sizeof *g);
    g->host = host;
    g->edit = edit;
    g->facts = facts;
    read_options(g);
    *self = g;
    return TN_OK;
}

static void destroy(void *self)
{
    struct gpt *g = self;
    if (g)
        g->host->release(g->host, g);
}

static int64_t positions_of(const struct gpt *g)
{
    return g->positions > 0 ? g->positions : g->facts->get(g->host, "sequence", -1);
}

static int64_t fact(void *self, const char *name, int64_t missing)
{
    const struct gpt *g = self;
    const struct {
        const char *name;
        int64_t value;
    } known[] = {
        { "layers", g->layers },     { "hidden", g->hidden }, { "heads", g->heads }, { "kv_heads", g->kv_heads },
        { "head_dim", g->head_dim }, { "mlp", g->mlp },       { "vocab", g->vocab },
    };
    for (size_t n = 0; n < sizeof known / sizeof known[0]; n++)
        if (strcmp(known[n].name, name) == 0)
            return known[n].value;
    if (strcmp(name, "positions") == 0) {
        int64_t positions = positions_of(g);
        return positions > 0 ? positions : missing;
    }
    return missing;
}

/* The divisors of n nearest to `near`, as "use 4, 6 or 8". */
static void divisors_text(int64_t n, int64_t near, char *text, size_t bytes)
{
    int64_t below = near < n ? near : n, above = near;
    while (below > 1 && n % below != 0)
        below--;
    while (above < n && n % above != 0)
        above++;
    if (below < 1)
        below = 1;
    if (above > n || above == below)
        snprintf(text, bytes, "use %lld", (long long)below);
    else
        snprintf(text, bytes, "use %lld or %lld", (long long)below, (long long)above);
}

static void check_heads(const struct gpt *g)
{
    const struct tn_host *host = g->host;
    char what[160], fix[160];
    if (g->head_dim * g->heads != g->hidden && host->get_int(host, "head_dim") < 0) {
        snprintf(what, sizeof what, "%lld does not divide hidden = %lld", (long long)g->heads, (long long)g->hidden);
        divisors_text(g->hidden, g->heads, fix, sizeof fix);
        strncat(fix, ", or set head_dim", sizeof fix - strlen(fix) - 1);
        host->problem(host, "heads", what, fix);
    } else if (g->family == GPT_FAMILY_LLAMA && g->head_dim % 2 != 0) {
        snprintf(what, sizeof what, "heads are %lld wide, but RoPE rotates pairs", (long long)g->head_dim);
        snprintf(fix, sizeof fix, "use an even width such as %lld", (long long)g->head_dim + 1);
        host->problem(host, "head_dim", what, fix);
    }
    if (g->kv_heads < 1 || g->heads % g->kv_heads != 0) {
        snprintf(what, sizeof what, "%lld does not divide heads = %lld", (long long)g->kv_heads, (long long)g->heads);
        divisors_text(g->heads, g->kv_heads, fix, sizeof fix);
        host->problem(host, "kv_heads", what, fix);
    }
}

static tn_status check(void *self)
{
    const struct gpt *g = self;
    const struct tn_host *host = g->host;
    char what[160], fix[160];
    check_heads(g);
    int64_t sequence = g->facts->get(host, "sequence", 0);
    if (g->positions > 0 && sequence > g->positions) {
        snprintf(what, sizeof what, "%lld is less than the sequence of %lld tokens that [data] asks for",
                 (long long)g->positions, (long long)sequence);
        snprintf(fix, sizeof fix, "use at least %lld here, or at most %lld there", (long long)sequence,
                 (long long)g->positions);
        host->problem(host, "positions", what, fix);
    }
    if (g->family == GPT_FAMILY_GPT2 && g->qkv_bias)
        host->problem(host, "qkv_bias", "is an option of llama; gpt2 always has these biases",
                      "leave it out, or use family = llama");
    if (g->family == GPT_FAMILY_GPT2 && g->qk_norm)
        host->problem(host, "qk_norm", "is an option of llama", "leave it out, or use family = llama");
    return TN_OK;
}

static tn_value input(struct gpt_builder *b, const char *name, const struct tn_build *build)
{
    static const char *const dims[] = { "batch", "sequence" };
    const int64_t shape[] = { build->batch, build->sequence };
    return b->edit->value(b->program, TN_KIND_INPUT, name, TN_I32, 2, shape, dims);
}

static void add_inputs(struct gpt_builder *b, const struct tn_build *build)
{
    b->edit->at(b->program, TN_REGION_FORWARD, -1, 0);
    b->tokens = input(b, "tokens", build);
    b->positions = input(b, "positions", build);
    if (build->mode != TN_BUILD_TRAIN)
        return;
    b->labels = input(b, "labels", build);
    if (TN_HAS(build, flags) && (build->flags & TN_BUILD_DOCUMENTS))
        b->start = input(b, "start", build);
    if (b->gpt->dropout > 0)
        b->step = b->edit->value(b->program, TN_KIND_INPUT, "step", TN_F32, 0, NULL, NULL);
}

static void add_head(struct gpt_builder *b, tn_value x, tn_value table)
{
    const struct gpt *g = b->gpt;
    int gpt2 = g->family == GPT_FAMILY_GPT2;
    gpt_scope(b, -1, gpt2 ? "transformer." : "model.", "");
    x = gpt_norm(b, gpt2 ? "ln_f" : "norm", "final_norm", x);
    if (!g->tied) {
        gpt_scope(b, -1, "", "");
        table = gpt_matrix(b, "lm_head.weight", g->vocab, "vocab", g->hidden, "embed", g->init_std);
    }
    tn_value logits = gpt_matmul(b, "logits", x, table, 1);
    b->edit->set_tag(b->program, logits, "logits");
    if (!b->labels) {
        b->edit->set_flags(b->program, logits, TN_VALUE_OUTPUT);
        return;
    }
    const tn_value in[] = { logits, b->labels };
    tn_value loss = gpt_op(b, TN_OP_CROSS_ENTROPY, "loss", in, 2, NULL, 0);
    b->edit->set_flags(b->program, loss, TN_VALUE_LOSS);
}

static tn_status build(void *self, struct tn_program *program, const struct tn_build *what)
{
    struct gpt *g = self;
    if (what->mode != TN_BUILD_TRAIN && what->mode != TN_BUILD_LOGITS)
        return g->host->fail(g->host, TN_UNSUPPORTED, "gpt builds no program of mode %u", what->mode);
    if (g->positions > 0 && what->sequence > g->positions)
        return g->host->fail(g->host, TN_INVALID, "a sequence of %lld tokens is longer than positions = %lld",
                             (long long)what->sequence, (long long)g->positions);
    struct gpt_builder b = { .gpt = g, .edit = g->edit, .program = program };
    int gpt2 = g->family == GPT_FAMILY_GPT2;
    tn_value table = 0;
    add_inputs(&b, what);
    tn_value x = gpt2 ? gpt2_embed(&b, &table) : llama_embed(&b, &table);
    for (int32_t layer = 0; layer < g->layers; layer++)
        x = gpt2 ? gpt2_layer(&b, layer, x) : llama_layer(&b, layer, x);
    add_head(&b, x, table);
    return TN_OK;
}

static const struct tn_model table = {
    .struct_size = sizeof(struct tn_model),
    .create = create,
    .destroy = destroy,
    .fact = fact,
    .check = check,
    .build = build,
};

static const char *const needs[] = { "tn.program_edit/1", "tn.facts/1", NULL };

static const struct tn_plugin plugin = {
    TN_PLUGIN_BUILT,         .min_host_minor = 1,
    .kind = TN_PLUGIN_MODEL, .id = "gpt",
    .version = "0.1.0",      .summary = "Decoder-only transformers of the GPT-2 and Llama families.",
    .build_info = "",        .table = &table,
    .options = options,      .option_count = sizeof options / sizeof options[0],
    .needs = needs,
};

const struct tn_plugin *tn_plugin_query(const struct tn_host_info *host)
{
    (void)host;
    return &plugin;
}
