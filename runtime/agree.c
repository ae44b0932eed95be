/* Agreement: every rank learns what every rank has to say. */
#include "agree.h"

#include <stdio.h>
#include <string.h>

void gdpi_set_message_status(gdpi_message *m, gdp_status status)
{
    m->status = (int32_t)status;
    snprintf(m->sentence, sizeof m->sentence, "%s", status == GDP_OK ? "" : gdp_last_error());
}

/* The verdict on all messages: the same on each rank, but that a failed one keeps its own status. */
static gdp_status judge(const gdpi_message *all, const gdp_comm *comm)
{
    if (all[comm->rank].status != GDP_OK)
        return gdpi_fail((gdp_status)all[comm->rank].status, "%s", all[comm->rank].sentence);
    for (int r = 0; r < comm->size; r++)
        if (all[r].status != GDP_OK)
            return gdpi_fail(GDP_STATUS_PEER, "rank %d failed: %s", r, all[r].sentence);
    for (int r = 1; r < comm->size; r++) {
        if (strcmp(all[r].class_text, all[0].class_text) != 0)
            return gdpi_fail(GDP_STATUS_MISMATCH,
                             "rank 0 has '%s', rank %d has '%s'; accepted are equal ones",
                             all[0].class_text, r, all[r].class_text);
        if (strcmp(all[r].config_text, all[0].config_text) != 0)
            return gdpi_fail(GDP_STATUS_MISMATCH, "rank 0 runs '%s', rank %d runs '%s'",
                             all[0].config_text, r, all[r].config_text);
    }
    return GDP_OK;
}

gdp_status gdpi_agree(gdp_context *context, const gdp_comm *comm, const gdpi_message *mine,
                      char *config_text)
{
    gdpi_message *all = gdpi_allocate_zeroed(&context->allocator, (size_t)comm->size * sizeof *all);
    if (!all) return GDP_STATUS_OUT_OF_MEMORY;
    gdp_status status = comm->all_gather_host(comm->user, mine, all, sizeof *mine);
    if (config_text) {
        memcpy(config_text, all[0].config_text, CONFIG_TEXT);
        for (int r = 1; r < comm->size; r++) memcpy(all[r].config_text, config_text, CONFIG_TEXT);
    }
    if (status == GDP_OK) status = judge(all, comm);
    gdpi_release(&context->allocator, all);
    return status;
}

gdp_status gdpi_agree_on_status(gdp_context *context, const gdp_comm *comm, gdp_status status)
{
    gdpi_message mine;
    memset(&mine, 0, sizeof mine);
    gdpi_set_message_status(&mine, status);
    return gdpi_agree(context, comm, &mine, NULL);
}
