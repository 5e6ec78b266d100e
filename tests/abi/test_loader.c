/* Loader: what it makes of each broken plugin (broken.c), of unsafe files and of its search; the host table; chains.
 *
 * Every case works on copies in a folder of its own, so that modes and neighbours are the test's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <elf.h>

#include "loader/loader.h"
#include "scratch.h"

struct state {
    struct tn_arena arena;
    struct tn_diag diag;
    struct tn_manifest m;
    struct tn_library library;
    struct tn_load_error error;
};

static int start(void **state)
{
    struct state *s = calloc(1, sizeof *s);
    scratch_open();
    chmod(scratch_folder, 0755);
    unsetenv("TENON_PLUGIN_PATH");
    scratch_text("job.ini", "[good]\nsize = 4\n[strategies]\nchain = a, b\n");
    tn_arena_init(&s->arena);
    tn_diag_init(&s->diag);
    tn_manifest_init(&s->m, scratch_path("job.ini"), NULL, 0, &s->diag);
    assert_int_equal(s->diag.count, 0);
    *state = s;
    return 0;
}

static int finish(void **state)
{
    struct state *s = *state;
    tn_manifest_finish(&s->m);
    tn_diag_finish(&s->diag);
    tn_arena_finish(&s->arena);
    scratch_close();
    free(s);
    return 0;
}

static char *read_file(const char *path, size_t *bytes)
{
    enum { MOST_BYTES = 64 << 20 };
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is not there; BROKEN_PLUGINS names the folder of the built plugins", path);
    char *text = malloc(MOST_BYTES);
    *bytes = fread(text, 1, MOST_BYTES, file);
    fclose(file);
    return text;
}

static char *read_built(const char *name, size_t *bytes)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", getenv("BROKEN_PLUGINS"), name);
    return read_file(path, bytes);
}

/* The built plugin `name`.so, copied to `as` in the scratch folder. Returns its path. */
static const char *copy_as(const char *name, const char *as)
{
    size_t bytes;
    char file[64];
    snprintf(file, sizeof file, "%s.so", name);
    char *text = read_built(file, &bytes);
    unlink(scratch_path(as)); /* never write into a file that may be mapped */
    scratch_write(as, text, bytes);
    free(text);
    assert_int_equal(chmod(scratch_path(as), 0755), 0);
    return scratch_path(as);
}

static const char *copy(const char *name)
{
    char file[64];
    snprintf(file, sizeof file, "%s.so", name);
    return copy_as(name, file);
}

static void open_path(struct state *s, const char *path, uint32_t kind)
{
    const struct tn_search none = { NULL, 0 };
    tn_library_open(&s->library, path, kind, &none, &s->arena, &s->error);
}

/* The path must be refused for `reason`; the text must begin with it and hold the path and `said`. */
static void refuses_path(struct state *s, const char *path, enum tn_load reason, const char *said)
{
    open_path(s, path, TN_PLUGIN_STRATEGY);
    if (s->error.reason != reason || !strstr(s->error.text, said))
        fail_msg("expected %s and \"%s\", got: %s", tn_load_name(reason), said, s->error.text);
    assert_true(strncmp(s->error.text, tn_load_name(reason), strlen(tn_load_name(reason))) == 0);
    assert_non_null(strstr(s->error.text, path));
}

static void refuses(struct state *s, const char *name, enum tn_load reason, const char *said)
{
    refuses_path(s, copy(name), reason, said);
}

static void takes(struct state *s, const char *path)
{
    open_path(s, path, TN_PLUGIN_STRATEGY);
    assert_string_equal(s->error.text, "");
}

/* ---- descriptions ---- */

static void a_good_plugin(void **state)
{
    struct state *s = *state;
    const char *path = copy("good");
    takes(s, path);
    assert_string_equal(s->library.path, path);
    assert_string_equal(s->library.plugin->id, "good");
    assert_int_equal(s->library.minor, TN_ABI_MINOR);
    assert_int_equal(s->library.plugin->option_count, 1);
    assert_non_null(((const struct tn_strategy *)s->library.plugin->table)->axes);
}

static void an_older_plugin_lacks_what_it_was_built_without(void **state)
{
    struct state *s = *state;
    takes(s, copy("older"));
    assert_int_equal(s->library.minor, 0);
    assert_null(s->library.plugin->needs);
    assert_null(s->library.plugin->conflicts);
    const struct tn_strategy *table = s->library.plugin->table;
    assert_non_null(table->create);
    assert_null(table->axes);
    assert_null(table->schedule);
}

static void a_later_plugin_works_at_our_minor(void **state)
{
    struct state *s = *state;
    takes(s, copy("later"));
    assert_int_equal(s->library.minor, TN_ABI_MINOR);
}

static void bad_descriptions(void **state)
{
    struct state *s = *state;
    refuses(s, "entry", TN_LOAD_NO_ENTRY, "undefined symbol: tn_plugin_query");
    refuses(s, "magic", TN_LOAD_NO_ENTRY, "no plugin description (magic 0x12345678");
    refuses(s, "size", TN_LOAD_NO_ENTRY, "no plugin description");
    refuses(s, "prefix", TN_LOAD_NO_ENTRY, "lacks the version, summary or build_info");
    refuses(s, "reserved", TN_LOAD_NO_ENTRY, "its id 'data' is no free section name");
    refuses(s, "table", TN_LOAD_NO_ENTRY, "has no strategy table");
    refuses(s, "major", TN_LOAD_ABI_MAJOR, "built for ABI 1.1; this Tenon has 0.1");
    refuses(s, "minor", TN_LOAD_ABI_MINOR, "needs a Tenon of ABI 0.2 or later");
    refuses(s, "needs", TN_LOAD_FEATURE_MISSING, "needs \"com.example.unknown/1\"");
    refuses(s, "refuses", TN_LOAD_FEATURE_MISSING, "refuses to work with Tenon");
    refuses(s, "function", TN_LOAD_FEATURE_MISSING, "its strategy table lacks the function destroy");
    refuses(s, "device", TN_LOAD_NO_ENTRY, "is a plugin of kind device, where a strategy is wanted");
    open_path(s, copy("kind"), 0);
    assert_int_equal(s->error.reason, TN_LOAD_FEATURE_MISSING);
}

static void missing_dependencies(void **state)
{
    struct state *s = *state;
    size_t bytes;
    char *text = read_built("borrowed.so", &bytes);
    char *needed = memmem(text, bytes, "liblender.so", 12);
    assert_non_null(needed);
    memcpy(needed, "libabsent.so", 12);
    scratch_write("absent.so", text, bytes);
    refuses_path(s, scratch_path("absent.so"), TN_LOAD_MISSING_DEPENDENCY,
                 "libabsent.so: cannot open shared object file: No such file or directory");
    free(text);
    refuses(s, "undefined", TN_LOAD_MISSING_DEPENDENCY, "undefined symbol: nobody_defines_this");
}

static void an_entry_of_a_dependency_is_none(void **state)
{
    struct state *s = *state;
    copy_as("liblender", "liblender.so");
    refuses_path(s, copy("borrowed"), TN_LOAD_NO_ENTRY, "liblender.so, which it is linked with");
}

/* ---- files ---- */

static void files_that_are_no_objects(void **state)
{
    struct state *s = *state;
    scratch_text("text.so", "#!/bin/sh\necho this is a script, and it has more than sixty-four bytes of text in it\n");
    refuses_path(s, scratch_path("text.so"), TN_LOAD_NOT_ELF, "no ELF header");
    scratch_text("empty.so", "");
    refuses_path(s, scratch_path("empty.so"), TN_LOAD_NOT_ELF, "no ELF header");
    mkdir(scratch_path("folder.so"), 0755);
    refuses_path(s, scratch_path("folder.so"), TN_LOAD_NOT_ELF, "is not a file");
    mkfifo(scratch_path("fifo.so"), 0644);
    refuses_path(s, scratch_path("fifo.so"), TN_LOAD_NOT_ELF, "is not a file");
    size_t bytes;
    char *text = read_file("/proc/self/exe", &bytes); /* an executable, whichever way it is linked */
    scratch_write("program.so", text, bytes);
    refuses_path(s, scratch_path("program.so"), TN_LOAD_NOT_ELF, "");
    free(text);
}

/* dlopen would map each of these and some would end in SIGBUS. */
static void truncated_files(void **state)
{
    struct state *s = *state;
    size_t bytes;
    char *text = read_built("good.so", &bytes);
    for (size_t cut = 1; cut < bytes; cut += cut < 4096 ? 61 : 997) {
        scratch_write("cut.so", text, cut);
        refuses_path(s, scratch_path("cut.so"), TN_LOAD_NOT_ELF, "");
    }
    scratch_write("cut.so", text, bytes - 1);
    refuses_path(s, scratch_path("cut.so"), TN_LOAD_NOT_ELF, "is cut off or damaged");
    free(text);
}

static void patched(struct state *s, size_t offset, int value, enum tn_load reason, const char *said)
{
    size_t bytes;
    char *text = read_built("good.so", &bytes);
    text[offset] = (char)value;
    scratch_write("patched.so", text, bytes);
    refuses_path(s, scratch_path("patched.so"), reason, said);
    free(text);
}

static void objects_for_other_machines(void **state)
{
    struct state *s = *state;
    int other_class = sizeof(void *) == 8 ? ELFCLASS32 : ELFCLASS64;
    patched(s, EI_CLASS, other_class, TN_LOAD_WRONG_ARCH,
            sizeof(void *) == 8 ? "is a 32-bit object" : "is a 64-bit object");
    patched(s, EI_DATA, ELFDATA2MSB, TN_LOAD_WRONG_ARCH, "build it for this machine");
    patched(s, offsetof(Elf64_Ehdr, e_machine), EM_S390, TN_LOAD_WRONG_ARCH, "is for ELF machine 22");
    patched(s, offsetof(Elf64_Ehdr, e_type), ET_REL, TN_LOAD_NOT_ELF, "not a shared object");
}

static void unsafe_files(void **state)
{
    struct state *s = *state;
    const char *path = copy("good");
    chmod(path, 0757);
    refuses_path(s, path, TN_LOAD_UNSAFE_FILE, "is world-writable (mode 0757); use chmod go-w");
    chmod(path, 0775);
    refuses_path(s, path, TN_LOAD_UNSAFE_FILE, "is group-writable (mode 0775)");
    chmod(path, 0755);
    takes(s, path);
}

static void unsafe_folders(void **state)
{
    struct state *s = *state;
    char deep[512];
    mkdir(scratch_path("a"), 0755);
    mkdir(scratch_path("a/b"), 0755);
    strcpy(deep, copy_as("good", "a/b/good.so"));
    takes(s, deep);
    chmod(scratch_path("a/b"), 0777);
    refuses_path(s, deep, TN_LOAD_UNSAFE_FILE, "a/b is world-writable");
    chmod(scratch_path("a/b"), 01777); /* sticky does not help in its own folder: anybody may add a neighbour */
    refuses_path(s, deep, TN_LOAD_UNSAFE_FILE, "a/b is world-writable");
    chmod(scratch_path("a/b"), 0755);
    chmod(scratch_path("a"), 0777);
    refuses_path(s, deep, TN_LOAD_UNSAFE_FILE, "a is world-writable");
    chmod(scratch_path("a"), 01777); /* as /tmp is: b cannot be replaced */
    takes(s, deep);
}

static void files_of_others(void **state)
{
    if (geteuid() != 0)
        skip(); /* only root can give files away */
    struct state *s = *state;
    const char *path = copy("good");
    assert_int_equal(chown(path, 65534, 65534), 0);
    refuses_path(s, path, TN_LOAD_UNSAFE_FILE, "belongs to user 65534, who is neither root nor you");
    assert_int_equal(chown(path, 0, 0), 0);
    assert_int_equal(chown(scratch_folder, 65534, 65534), 0);
    refuses_path(s, path, TN_LOAD_UNSAFE_FILE, "the folder");
    assert_int_equal(chown(scratch_folder, 0, 0), 0);
}

static void links(void **state)
{
    struct state *s = *state;
    char path[512], real[512], other[512];
    strcpy(real, copy("good"));
    mkdir(scratch_path("links"), 0755);
    strcpy(path, scratch_path("links/good.so"));
    assert_int_equal(symlink("../good.so", path), 0);
    takes(s, path);
    assert_string_equal(s->library.path, real);
    chmod(scratch_path("links"), 0777); /* anybody could turn the link to another plugin */
    open_path(s, path, 0);
    assert_int_equal(s->error.reason, TN_LOAD_UNSAFE_FILE);
    strcpy(other, scratch_path("dangling.so"));
    assert_int_equal(symlink("nowhere.so", other), 0);
    refuses_path(s, other, TN_LOAD_NOT_FOUND, "No such file");
}

/* ---- search ---- */

static enum tn_load find(struct state *s, const char *name, const struct tn_search *search)
{
    return tn_library_open(&s->library, name, TN_PLUGIN_STRATEGY, search, &s->arena, &s->error);
}

static void paths_start_at_the_manifest(void **state)
{
    struct state *s = *state;
    const struct tn_search here = { scratch_folder, 0 }, none = { NULL, 0 };
    copy("good");
    assert_int_equal(find(s, "./good.so", &here), TN_LOAD_OK);
    assert_int_equal(find(s, "./absent.so", &here), TN_LOAD_NOT_FOUND);
    assert_non_null(strstr(s->error.text, "No such file or directory"));
    assert_int_equal(find(s, "./good.so", &none), TN_LOAD_NOT_FOUND);
    assert_int_equal(find(s, "good.so", &here), TN_LOAD_NOT_FOUND);
    assert_non_null(strstr(s->error.text, "as in ./good.so"));
}

static void ids_are_searched_in_order(void **state)
{
    struct state *s = *state;
    const struct tn_search here = { scratch_folder, 0 }, beside = { scratch_folder, 1 };
    char variable[256], first[256], second[256];
    mkdir(scratch_path("first"), 0755);
    mkdir(scratch_path("second"), 0755);
    strcpy(first, scratch_path("first"));
    strcpy(second, scratch_path("second"));
    copy("good");
    assert_int_equal(find(s, "good", &here), TN_LOAD_NOT_FOUND); /* beside the manifest only if asked */
    assert_non_null(strstr(s->error.text, "no file good.so in "));
    assert_int_equal(find(s, "good", &beside), TN_LOAD_OK);

    snprintf(variable, sizeof variable, "%s:%s", first, second);
    setenv("TENON_PLUGIN_PATH", variable, 1);
    assert_int_equal(find(s, "good", &here), TN_LOAD_NOT_FOUND);
    assert_non_null(strstr(s->error.text, variable)); /* every folder searched */
    copy_as("good", "second/good.so");
    assert_int_equal(find(s, "good", &here), TN_LOAD_OK);
    assert_string_equal(s->library.path, scratch_path("second/good.so"));
    copy_as("magic", "first/good.so"); /* found first, so it is the one, though it is broken */
    assert_int_equal(find(s, "good", &here), TN_LOAD_NO_ENTRY);
    mkdir(scratch_path("third"), 0755);
    copy_as("later", "third/good.so");
    setenv("TENON_PLUGIN_PATH", scratch_path("third"), 1);
    assert_int_equal(find(s, "good", &here), TN_LOAD_NOT_FOUND);
    assert_non_null(strstr(s->error.text, "holds the plugin later, not good"));
}

static void the_working_directory_is_not_searched(void **state)
{
    struct state *s = *state;
    const struct tn_search none = { NULL, 0 };
    char before[1024];
    copy("good");
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(scratch_folder), 0);
    setenv("TENON_PLUGIN_PATH", ".::", 1);
    assert_int_equal(find(s, "good", &none), TN_LOAD_NOT_FOUND);
    assert_int_equal(chdir(before), 0);
}

/* ---- instances ---- */

static int64_t some_fact(const struct tn_facts *facts, const char *name, int64_t missing)
{
    return strcmp(name, "heads") == 0 ? 8 : missing;
}

static void two_instances_have_their_own(void **state)
{
    struct state *s = *state;
    struct tn_instance a, b;
    struct tn_manifest other;
    const char *const sets[] = { "good.size=7" };
    takes(s, copy("good"));
    tn_manifest_init(&other, scratch_path("job.ini"), sets, 1, &s->diag);
    tn_instance_init(&a, &s->library, &s->m, &s->diag);
    tn_instance_init(&b, &s->library, &other, &s->diag);
    assert_int_equal(tn_instance_create(&a, NULL, &s->error), TN_LOAD_OK);
    assert_int_equal(tn_instance_create(&b, NULL, &s->error), TN_LOAD_OK);
    const struct tn_strategy *table = tn_instance_table(&a);
    int32_t n;
    assert_int_equal(table->axes(a.self, 1, NULL, 0, &n), TN_OK);
    assert_int_equal(n, 4);
    assert_int_equal(table->axes(b.self, 1, NULL, 0, &n), TN_OK);
    assert_int_equal(n, 7);

    void *selfs[] = { a.self, b.self };
    tn_instance_destroy(&a);
    tn_instance_destroy(&a); /* once more is nothing */
    tn_instance_destroy(&b);
    for (int i = 0; i < 2; i++)
        a.host.release(&a.host, selfs[i]);
    assert_int_equal(s->diag.count, 0);
    tn_manifest_finish(&other);
}

static void host_table(void **state)
{
    struct state *s = *state;
    struct tn_instance a;
    const struct tn_facts facts = { .get = some_fact };
    takes(s, copy("good"));
    tn_instance_init(&a, &s->library, &s->m, &s->diag);
    const struct tn_host *host = &a.host;
    const struct tn_facts_api *api = host->get_api(host, "tn.facts/1");
    assert_int_equal(api->get(host, "heads", -3), -3); /* none are known yet */
    a.facts = &facts;
    assert_int_equal(api->get(host, "heads", -3), 8);
    assert_int_equal(api->get(host, "layers", -3), -3);
    assert_null(host->get_api(host, "com.example.unknown/1"));

    assert_int_equal((host->fail)(host, TN_CONFLICT, "%d and %s", 3, "x"), TN_CONFLICT);
    assert_string_equal(tn_instance_message(&a), "3 and x");
    assert_non_null(strstr(tn_instance_message(&a), "fault of the plugin good")); /* said once */

    host->problem(host, "size", "4 does not divide heads = 6", "use 1, 2, 3 or 6");
    host->problem(host, NULL, "x", NULL);
    assert_int_equal(s->diag.count, 2);
    assert_int_equal(s->diag.problems[0].where.line, 2);
    assert_non_null(strstr(tn_diag_text(&s->diag, &s->diag.problems[0]),
                           "job.ini:2: [good] size: 4 does not divide heads = 6; use 1, 2, 3 or 6"));
    assert_non_null(strstr(tn_diag_text(&s->diag, &s->diag.problems[1]), "job.ini:1: [good]: x"));
}

static void creates_that_fail(void **state)
{
    struct state *s = *state;
    struct tn_instance a;
    takes(s, copy("fails"));
    tn_instance_init(&a, &s->library, &s->m, &s->diag);
    assert_int_equal(tn_instance_create(&a, NULL, &s->error), TN_LOAD_INIT_FAILED);
    assert_non_null(strstr(s->error.text, "fails.so: no more than 0 instances"));
    assert_null(a.self);
    tn_instance_destroy(&a);

    takes(s, copy("silent"));
    tn_instance_init(&a, &s->library, &s->m, &s->diag);
    assert_int_equal(tn_instance_create(&a, NULL, &s->error), TN_LOAD_INIT_FAILED);
    assert_non_null(strstr(s->error.text, "silent.so: failed without saying why; that is a fault of the plugin"));

    open_path(s, copy("device"), TN_PLUGIN_DEVICE);
    assert_string_equal(s->error.text, "");
    tn_instance_init(&a, &s->library, &s->m, &s->diag);
    assert_int_equal(tn_instance_create(&a, NULL, &s->error), TN_LOAD_UNSUPPORTED_DEVICE);
    assert_non_null(strstr(s->error.text, "no such processor here"));
}

static void options_that_the_table_lacks(void **state)
{
    struct state *s = *state;
    struct tn_instance a;
    takes(s, copy("options"));
    tn_instance_init(&a, &s->library, &s->m, &s->diag);
    assert_int_equal(tn_instance_create(&a, NULL, &s->error), TN_LOAD_OK);
    assert_int_equal(s->diag.count, 2);
    assert_string_equal(s->diag.problems[0].what, "the plugin reads absent, no option of its table");
    assert_string_equal(s->diag.problems[1].what, "the plugin reads its option size as another type");
    void *self = a.self;
    tn_instance_destroy(&a);
    a.host.release(&a.host, self);
}

/* ---- chains ---- */

struct link {
    struct tn_strategy table;
    struct tn_plugin plugin;
    struct tn_instance instance;
};

static tn_status schedule(void *self, const struct tn_program *program, int32_t micro, struct tn_slot *slots,
                          uint32_t cap, uint32_t *n)
{
    return TN_OK;
}

static struct tn_instance *link_init(struct state *s, struct link *link, const char *id)
{
    *link = (struct link){ .table = { .struct_size = sizeof link->table } };
    link->plugin = (struct tn_plugin){ .id = id, .version = "1", .kind = TN_PLUGIN_STRATEGY, .table = &link->table };
    link->instance.library = (struct tn_library){ .path = "/x.so", .plugin = &link->plugin, .minor = 1 };
    link->instance.manifest = &s->m;
    return &link->instance;
}

static void chain_says(struct state *s, struct tn_instance *const *chain, size_t count, const char *said)
{
    tn_diag_finish(&s->diag);
    tn_diag_init(&s->diag);
    tn_chain_check(chain, count, &s->diag);
    assert_int_equal(s->diag.count, *said != 0);
    if (*said)
        assert_non_null(strstr(tn_diag_text(&s->diag, s->diag.problems), said));
}

static void chain_order(void **state)
{
    struct state *s = *state;
    struct link a, b, c;
    struct tn_instance *const chain[] = { link_init(s, &a, "a"), link_init(s, &b, "b"), link_init(s, &c, "c") };
    struct tn_instance *const turned[] = { chain[2], chain[1], chain[0] };
    const char *const only_a[] = { "a", NULL }, *const only_c[] = { "c", NULL };
    chain_says(s, chain, 3, "");

    c.plugin.after = only_a;
    chain_says(s, chain, 3, "");
    chain_says(s, turned, 3, "job.ini:4: [strategies] chain: c must come after a, says c; swap them");
    c.plugin.after = NULL;
    a.plugin.before = only_c;
    chain_says(s, chain, 3, "");
    chain_says(s, turned, 3, "c must come after a, says a; swap them");
    chain_says(s, chain + 1, 2, ""); /* a is not in this one */
    a.plugin.before = NULL;
    b.plugin.conflicts = only_c;
    chain_says(s, chain, 3, "b and c cannot be in one chain, says b; keep one of them");
    b.plugin.conflicts = NULL;
}

static void chain_needs_and_rules(void **state)
{
    struct state *s = *state;
    struct link a, b;
    struct tn_instance *const chain[] = { link_init(s, &a, "a"), link_init(s, &b, "b") };
    const char *const needs[] = { "tn.facts/1", "com.example.unknown/1", NULL };
    a.plugin.needs = needs;
    chain_says(s, chain, 2, "a needs \"com.example.unknown/1\", which this one does not have");
    a.plugin.needs = NULL;
    a.table.schedule = b.table.schedule = schedule;
    chain_says(s, chain, 2, "a and b both decide the schedule of micro-batches");
    a.table.schedule = NULL;
    b.plugin.id = "a";
    chain_says(s, chain, 2, "a is named twice; name it once");
}

static void chain_hash(void **state)
{
    struct state *s = *state;
    struct link a, b;
    struct tn_instance *const chain[] = { link_init(s, &a, "a"), link_init(s, &b, "b") };
    struct tn_instance *const turned[] = { chain[1], chain[0] };
    uint64_t hash = tn_chain_hash(chain, 2);
    assert_true(hash == tn_chain_hash(chain, 2));
    assert_false(hash == tn_chain_hash(turned, 2));
    assert_false(hash == tn_chain_hash(chain, 1));
    b.plugin.version = "2";
    assert_false(hash == tn_chain_hash(chain, 2));
    b.plugin.version = "1";
    b.instance.library.minor = 0;
    assert_false(hash == tn_chain_hash(chain, 2));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, finish)
    const struct CMUnitTest tests[] = {
        TEST(a_good_plugin),
        TEST(an_older_plugin_lacks_what_it_was_built_without),
        TEST(a_later_plugin_works_at_our_minor),
        TEST(bad_descriptions),
        TEST(missing_dependencies),
        TEST(an_entry_of_a_dependency_is_none),
        TEST(files_that_are_no_objects),
        TEST(truncated_files),
        TEST(objects_for_other_machines),
        TEST(unsafe_files),
        TEST(unsafe_folders),
        TEST(files_of_others),
        TEST(links),
        TEST(paths_start_at_the_manifest),
        TEST(ids_are_searched_in_order),
        TEST(the_working_directory_is_not_searched),
        TEST(two_instances_have_their_own),
        TEST(host_table),
        TEST(creates_that_fail),
        TEST(options_that_the_table_lacks),
        TEST(chain_order),
        TEST(chain_needs_and_rules),
        TEST(chain_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
