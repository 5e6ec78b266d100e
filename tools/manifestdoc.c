/* Manifestdoc: the reference of the manifest, docs/manifest.md, from the option tables of the core and of plugins.
 *
 *     manifestdoc PLUGIN.so...                 prints the page
 *     manifestdoc --check FILE PLUGIN.so...    1 if FILE is another text; a test calls it */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "loader/loader.h"

static const char opening[] =
    "# The manifest\n\n"
    "Made by tools/manifestdoc.c from the option tables; do not edit.\n\n"
    "A job is one INI file: sections in brackets, `key = value` below them. `;` or `#` at the beginning of a line, or\n"
    "` ;` after a value, begins a comment. A key stands once in its section. `--set section.key=value` on the command\n"
    "line replaces one. A relative path starts in the manifest's folder.\n\n"
    "Unknown sections and keys are errors, as are values of the wrong type or out of range; `tenon check` reports all\n"
    "problems at once, each with its file, line and what would work.\n\n"
    "| type | as in |\n"
    "|---|---|\n"
    "| int | `42` |\n"
    "| float | `1e-4` |\n"
    "| bool | `true`, `false`, `on`, `off`, `yes`, `no` |\n"
    "| size | `4M`, `2G`: bytes, in powers of 1024 |\n"
    "| duration | `250ms`, `2s`, `3m` |\n"
    "| enum | one of the choices listed |\n"
    "| string | the text up to the end of the line |\n"
    "| list | words with commas between |\n";

static void put_table(struct tn_buf *page, const char *section, const char *help, const struct tn_option *table,
                      uint32_t count, uint32_t stride)
{
    tn_buf_printf(page, "\n### [%s]\n\n%s\n\n", section, help);
    if (count == 0) {
        tn_buf_printf(page, "No keys.\n");
        return;
    }
    struct tn_buf rows;
    tn_buf_init(&rows);
    tn_options_describe(table, count, stride, &rows);
    tn_buf_printf(page, "```\n%s```\n", rows.text);
    tn_buf_finish(&rows);
}

static void put_core(struct tn_buf *page)
{
    tn_buf_printf(page, "\n## Sections of the core\n");
    for (const struct tn_settings_section *s = tn_settings_sections(); s->name; s++)
        put_table(page, s->name, s->help, s->table, s->count, sizeof(struct tn_option));
}

/* -1, said on stderr, if the plugin does not load. */
static int put_plugin(struct tn_buf *page, const char *path)
{
    struct tn_arena arena;
    struct tn_library library;
    struct tn_load_error error;
    const struct tn_search search = { NULL, 0 };
    char *absolute = realpath(path, NULL);
    tn_arena_init(&arena);
    int failed = tn_library_open(&library, absolute ? absolute : path, 0, &search, &arena, &error) != TN_LOAD_OK;
    if (failed) {
        fprintf(stderr, "manifestdoc: %s\n", error.text);
    } else {
        const struct tn_plugin *plugin = library.plugin;
        struct tn_buf help;
        tn_buf_init(&help);
        tn_buf_printf(&help, "%s A %s plugin.", plugin->summary, tn_plugin_kind_name(plugin->kind));
        put_table(page, plugin->id, help.text, plugin->options, plugin->option_count, plugin->option_stride);
        tn_buf_finish(&help);
    }
    tn_arena_finish(&arena);
    free(absolute);
    return failed ? -1 : 0;
}

static int same_as(const char *path, const struct tn_buf *page)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return 0;
    int same = 1;
    for (size_t i = 0; i <= page->length && same; i++)
        same = fgetc(file) == (i < page->length ? (unsigned char)page->text[i] : EOF);
    fclose(file);
    return same;
}

int main(int argc, char **argv)
{
    int first = argc > 2 && strcmp(argv[1], "--check") == 0 ? 3 : 1, code = 0;
    struct tn_buf page;
    tn_buf_init(&page);
    tn_buf_printf(&page, "%s", opening);
    put_core(&page);
    tn_buf_printf(&page, "\n## Sections of plugins\n\nA section is named by the plugin's id; `tenon plugin inspect ID` "
                         "prints the same for any plugin.\n");
    for (int i = first; i < argc && code == 0; i++)
        code = put_plugin(&page, argv[i]) ? 2 : 0;
    if (code == 0 && first == 1) {
        fputs(page.text, stdout);
    } else if (code == 0 && !same_as(argv[2], &page)) {
        fprintf(stderr, "%s is out of date; make it anew: manifestdoc PLUGIN.so... > %s\n", argv[2], argv[2]);
        code = 1;
    }
    tn_buf_finish(&page);
    return code;
}
