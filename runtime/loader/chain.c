/* Chain: whether the strategies of a manifest can stand in the order in which it names them; see loader.h. */
#include "loader/loader.h"

#include <string.h>

#include <xxhash.h>

static const struct tn_plugin *plugin_of(const struct tn_instance *instance)
{
    return instance->library.plugin;
}

static int names(const char *const *list, const char *id)
{
    for (; list && *list; list++)
        if (strcmp(*list, id) == 0)
            return 1;
    return 0;
}

static struct tn_where chain_place(const struct tn_instance *instance)
{
    return tn_manifest_where(instance->manifest, "strategies", "chain");
}

/* `first` stands before `second`. */
static void check_pair(const struct tn_instance *first, const struct tn_instance *second, struct tn_diag *diag)
{
    const struct tn_plugin *a = plugin_of(first), *b = plugin_of(second);
    struct tn_where where = chain_place(first);
    if (strcmp(a->id, b->id) == 0) {
        tn_diag_add(diag, where, "name it once", "%s is named twice", a->id);
        return;
    }
    if (names(a->conflicts, b->id) || names(b->conflicts, a->id))
        tn_diag_add(diag, where, "keep one of them", "%s and %s cannot be in one chain, says %s", a->id, b->id,
                    names(a->conflicts, b->id) ? a->id : b->id);
    if (names(a->after, b->id) || names(b->before, a->id))
        tn_diag_add(diag, where, "swap them", "%s must come after %s, says %s", a->id, b->id,
                    names(a->after, b->id) ? a->id : b->id);
    const struct tn_strategy *s = tn_instance_table(first), *t = tn_instance_table(second);
    if (s->schedule && t->schedule)
        tn_diag_add(diag, where, "keep one of them", "%s and %s both decide the schedule of micro-batches", a->id,
                    b->id);
}

void tn_chain_check(struct tn_instance *const *chain, size_t count, struct tn_diag *diag)
{
    for (size_t i = 0; i < count; i++) {
        for (const char *const *need = plugin_of(chain[i])->needs; need && *need; need++)
            if (!tn_host_has_api(*need))
                tn_diag_add(diag, chain_place(chain[i]), "use a later Tenon",
                            "%s needs \"%.80s\", which this one does not have", plugin_of(chain[i])->id, *need);
        for (size_t j = i + 1; j < count; j++)
            check_pair(chain[i], chain[j], diag);
    }
}

uint64_t tn_chain_hash(struct tn_instance *const *all, size_t count)
{
    XXH64_hash_t hash = count;
    for (size_t i = 0; i < count; i++) {
        const struct tn_plugin *plugin = plugin_of(all[i]);
        hash = XXH64(plugin->id, strlen(plugin->id) + 1, hash);
        hash = XXH64(plugin->version, strlen(plugin->version) + 1, hash);
        hash = XXH64(&all[i]->library.minor, sizeof all[i]->library.minor, hash);
    }
    return hash;
}
