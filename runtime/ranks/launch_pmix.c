/* Launch, PMIx: rank and world from the launcher, and one message from rank 0 to all others: where the store is, and
 * the secret that opens it; see launch_other.h.
 *
 * Everything after that goes through the store, which tells of deaths the same way under every launcher
 * (docs/decisions/pmix.md). PMIx is one session a process, so its state is the process's. */
#include "ranks/launch_other.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef TENON_PMIX

#include <pmix.h>

enum { ASK_AGAIN_NS = 10 * 1000 * 1000 };

static const char key[] = "tenon.store";

static pmix_proc_t self;
static int active;

/* A number that the launcher knows of the whole job. */
static int32_t ask(const char *what)
{
    pmix_proc_t job;
    pmix_value_t *value = NULL;
    PMIX_LOAD_PROCID(&job, self.nspace, PMIX_RANK_WILDCARD);
    if (PMIx_Get(&job, what, NULL, 0, &value) != PMIX_SUCCESS || !value)
        return 0;
    int32_t number = value->type == PMIX_UINT32 ? (int32_t)value->data.uint32 : 0;
    PMIX_VALUE_RELEASE(value);
    return number;
}

int tn_pmix_init(int32_t *rank, int32_t *world, int32_t *local_world)
{
    if (!active && (!getenv("PMIX_NAMESPACE") || !getenv("PMIX_RANK") || PMIx_Init(&self, NULL, 0) != PMIX_SUCCESS))
        return 0;
    *rank = (int32_t)self.rank;
    *world = ask(PMIX_JOB_SIZE);
    *local_world = ask(PMIX_LOCAL_SIZE);
    active = *world > 1;
    if (!active)
        PMIx_Finalize(NULL, 0);
    return active;
}

int tn_pmix_active(void)
{
    return active;
}

static tn_status failed(const char *what, pmix_status_t status, char *error, size_t error_bytes)
{
    snprintf(error, error_bytes, "PMIx: %s: %s; MASTER_ADDR and MASTER_PORT in the environment do without it", what,
             PMIx_Error_string(status));
    return status == PMIX_ERR_TIMEOUT ? TN_TIMEOUT : TN_ERROR;
}

tn_status tn_pmix_say(const char *text, char *error, size_t error_bytes)
{
    pmix_value_t value;
    PMIX_VALUE_LOAD(&value, text, PMIX_STRING);
    pmix_status_t status = PMIx_Put(PMIX_GLOBAL, key, &value);
    if (status == PMIX_SUCCESS)
        status = PMIx_Commit();
    PMIX_VALUE_DESTRUCT(&value);
    return status == PMIX_SUCCESS ? TN_OK : failed("cannot say where the store is", status, error, error_bytes);
}

tn_status tn_pmix_hear(char *text, size_t text_bytes, uint64_t timeout_ns, char *error, size_t error_bytes)
{
    pmix_proc_t first;
    pmix_info_t info;
    pmix_value_t *value = NULL;
    int seconds = (int)((timeout_ns + 999999999u) / 1000000000u);
    PMIX_LOAD_PROCID(&first, self.nspace, 0);
    PMIX_INFO_LOAD(&info, PMIX_TIMEOUT, &seconds, PMIX_INT);
    pmix_status_t status = PMIx_Get(&first, key, &info, 1, &value);
    /* A server that has heard of the rank but not of the key answers at once, whatever the time-out. */
    for (uint64_t waited_ns = 0; status == PMIX_ERR_NOT_FOUND && waited_ns < timeout_ns; waited_ns += ASK_AGAIN_NS) {
        nanosleep(&(struct timespec){ .tv_nsec = ASK_AGAIN_NS }, NULL);
        status = PMIx_Get(&first, key, &info, 1, &value);
    }
    if (status == PMIX_SUCCESS && value->type == PMIX_STRING)
        snprintf(text, text_bytes, "%s", value->data.string);
    else if (status == PMIX_SUCCESS)
        status = PMIX_ERR_TYPE_MISMATCH;
    if (value)
        PMIX_VALUE_RELEASE(value);
    PMIX_INFO_DESTRUCT(&info);
    return status == PMIX_SUCCESS ? TN_OK
                                  : failed("rank 0 has not said where the store is", status, error, error_bytes);
}

void tn_pmix_finish(void)
{
    if (active)
        PMIx_Finalize(NULL, 0);
    active = 0;
}

#else

int tn_pmix_init(int32_t *rank, int32_t *world, int32_t *local_world)
{
    return 0;
}

int tn_pmix_active(void)
{
    return 0;
}

static tn_status absent(char *error, size_t error_bytes)
{
    snprintf(error, error_bytes, "built without PMIx");
    return TN_UNSUPPORTED;
}

tn_status tn_pmix_say(const char *text, char *error, size_t error_bytes)
{
    return absent(error, error_bytes);
}

tn_status tn_pmix_hear(char *text, size_t text_bytes, uint64_t timeout_ns, char *error, size_t error_bytes)
{
    return absent(error, error_bytes);
}

void tn_pmix_finish(void)
{
}

#endif
