/* What the ranks of a group tell each other before any of them goes on. */
#ifndef GDPI_AGREE_H
#define GDPI_AGREE_H

#include "internal.h"

enum { CLASS_TEXT = 512, CONFIG_TEXT = 256, SENTENCE_TEXT = 256 };

typedef struct gdpi_message {
    int32_t status;
    char class_text[CLASS_TEXT];   /* what must be equal on all ranks */
    char config_text[CONFIG_TEXT]; /* rank 0's, then what each rank's plan runs */
    char sentence[SENTENCE_TEXT];
} gdpi_message;

/** This thread's latest sentence goes with a failure. */
void gdpi_set_message_status(gdpi_message *m, gdp_status status);

/** Exchanges messages over host memory and judges them: the same verdict on each rank, but that a failed
 * one keeps its own status. Unless `config_text` is NULL, it gets rank 0's and those of the others do
 * not count. */
gdp_status gdpi_agree(gdp_context *context, const gdp_comm *comm, const gdpi_message *mine,
                      char *config_text);

/** The same with nothing but a status to tell. */
gdp_status gdpi_agree_on_status(gdp_context *context, const gdp_comm *comm, gdp_status status);

#endif
