/* A shared object without tn_plugin_query, linked with one that has it. */
#include <tenon/plugin.h>

const struct tn_plugin *(*borrowed_entry(void))(const struct tn_host_info *);
TN_EXPORT const struct tn_plugin *(*borrowed_entry(void))(const struct tn_host_info *)
{
    return tn_plugin_query;
}
