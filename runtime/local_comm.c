/* Ranks that are threads of one process, and of one device where they use one: they meet, read each
 * other's memory, and meet again. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "internal.h"

struct meeting;

typedef struct seat {
    struct meeting *meeting;
    int rank;
    const void *send; /* what this rank shows to the others between two meetings */
    size_t bytes;
    bool failed; /* what it shows is not there */
} seat;

typedef struct meeting {
    gdpi_allocator allocator;
    gdp_context *context;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int size, timeout_ms, arrived;
    uint64_t round;
    bool broken; /* a rank gave up waiting: the order of calls is lost for good */
    seat seats[];
} meeting;

static struct timespec deadline_in(int milliseconds)
{
    struct timespec when;
    clock_gettime(CLOCK_MONOTONIC, &when);
    when.tv_sec += milliseconds / 1000;
    when.tv_nsec += (long)(milliseconds % 1000) * 1000000L;
    if (when.tv_nsec >= 1000000000L) {
        when.tv_sec++;
        when.tv_nsec -= 1000000000L;
    }
    return when;
}

/* Waits until all ranks have come; false once somebody did not. */
static bool meet(meeting *m)
{
    const struct timespec deadline = deadline_in(m->timeout_ms);
    pthread_mutex_lock(&m->mutex);
    const uint64_t round = m->round;
    if (!m->broken && ++m->arrived == m->size) {
        m->arrived = 0;
        m->round++;
        pthread_cond_broadcast(&m->changed);
    }
    while (!m->broken && m->round == round)
        if (pthread_cond_timedwait(&m->changed, &m->mutex, &deadline) == ETIMEDOUT &&
            m->round == round) {
            m->broken = true;
            pthread_cond_broadcast(&m->changed);
        }
    const bool all_came = m->round != round;
    pthread_mutex_unlock(&m->mutex);
    return all_came;
}

/* Brings what rank `from` shows to this rank's memory; on_target: it may be a device's. */
static gdp_status fetch(meeting *m, const seat *from, void *to, bool on_target, gdp_stream stream)
{
    if (on_target) return gdpi_memory_copy_on(m->context, to, from->send, from->bytes, stream);
    if (from->bytes) memcpy(to, from->send, from->bytes);
    return GDP_OK;
}

/* A rank whose device fails still comes to both meetings, so that nobody waits for it. */
static gdp_status gather(seat *mine, const void *send, void *receive, size_t bytes, bool on_target,
                         gdp_stream stream)
{
    meeting *m = mine->meeting;
    gdp_status status = on_target ? gdp_stream_synchronize(m->context, stream) : GDP_OK;
    mine->send = send;
    mine->bytes = bytes;
    mine->failed = status != GDP_OK;
    bool equal = true, came = meet(m);
    int failed = -1;
    for (int r = 0; came && r < m->size; r++) {
        equal = equal && m->seats[r].bytes == bytes;
        if (m->seats[r].failed && failed < 0) failed = r;
        if (equal && failed < 0 && status == GDP_OK)
            status = fetch(m, &m->seats[r], (char *)receive + (size_t)r * bytes, on_target, stream);
    }
    if (on_target && came && status == GDP_OK) status = gdp_stream_synchronize(m->context, stream);
    came = came && meet(m); /* nobody's memory may change before all have read it */
    if (status != GDP_OK) return status;
    if (!came)
        return gdpi_fail(GDP_STATUS_TIMEOUT,
                         "rank %d: another rank did not come within %d ms; the group is over",
                         mine->rank, m->timeout_ms);
    if (!equal)
        return gdpi_fail(GDP_STATUS_MISMATCH,
                         "rank %d: the ranks exchange messages of different sizes", mine->rank);
    if (failed >= 0)
        return gdpi_fail(GDP_STATUS_PEER, "rank %d: the device of rank %d failed", mine->rank,
                         failed);
    return GDP_OK;
}

static gdp_status all_gather(void *user, const void *send, void *receive, size_t bytes,
                             gdp_stream stream)
{
    return gather(user, send, receive, bytes, true, stream);
}

static gdp_status all_gather_host(void *user, const void *send, void *receive, size_t bytes)
{
    return gather(user, send, receive, bytes, false, NULL);
}

gdp_status gdp_local_comms_create(gdp_context *context, int size, int timeout_ms, gdp_comm *comms)
{
    if (!context || !comms)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "context or comms is NULL");
    if (size < 1 || size > 4096)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "size is %d; accepted is 1 to 4096", size);
    if (timeout_ms < 1)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "timeout_ms is %d; accepted is 1 or more",
                         timeout_ms);
    meeting *m =
        gdpi_allocate_zeroed(&context->allocator, sizeof *m + (size_t)size * sizeof m->seats[0]);
    if (!m) return GDP_STATUS_OUT_OF_MEMORY;
    m->allocator = context->allocator;
    m->context = context;
    m->size = size;
    m->timeout_ms = timeout_ms;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->mutex, NULL);
    pthread_cond_init(&m->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    for (int r = 0; r < size; r++) {
        m->seats[r] = (seat){ .meeting = m, .rank = r };
        comms[r] = (gdp_comm){
            .struct_size = sizeof(gdp_comm),
            .rank = r,
            .size = size,
            .user = &m->seats[r],
            .all_gather = all_gather,
            .all_gather_host = all_gather_host,
        };
    }
    return GDP_OK;
}

void gdp_local_comms_destroy(gdp_context *context, gdp_comm *comms)
{
    if (!context || !comms || !comms[0].user) return;
    meeting *m = ((seat *)comms[0].user)->meeting;
    const gdpi_allocator allocator = m->allocator;
    for (int r = m->size - 1; r >= 0; r--) memset(&comms[r], 0, sizeof comms[r]);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->mutex);
    gdpi_release(&allocator, m);
}
