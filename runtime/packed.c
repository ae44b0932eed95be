/* Packed sequences cut into the shards of a context-parallel group. */
#include "internal.h"

static gdp_status check(const int64_t *cu, int64_t sequences, int rank, int size,
                        const int64_t *begin)
{
    if (!cu) return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "cu_seqlens is NULL");
    if (sequences < 1)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "sequences is %lld; accepted is 1 or more",
                         (long long)sequences);
    if (size < 1 || rank < 0 || rank >= size)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                         "rank is %d of %d; accepted is 0 <= rank < size", rank, size);
    if (cu[0] != 0)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "cu_seqlens[0] is %lld; accepted is 0",
                         (long long)cu[0]);
    for (int64_t i = 1; i <= sequences; i++)
        if (cu[i] < cu[i - 1])
            return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                             "cu_seqlens[%lld] is %lld; accepted is %lld or more", (long long)i,
                             (long long)cu[i], (long long)cu[i - 1]);
    if (!begin) return GDP_OK;
    if (begin[0] != 0 || begin[size] != cu[sequences])
        return gdpi_fail(
            GDP_STATUS_INVALID_ARGUMENT,
            "shard_begin goes from %lld to %lld; accepted is from 0 to %lld, the number of tokens",
            (long long)begin[0], (long long)begin[size], (long long)cu[sequences]);
    for (int r = 0; r < size; r++)
        if (begin[r + 1] < begin[r])
            return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT,
                             "shard_begin[%d] is %lld; accepted is %lld or more", r + 1,
                             (long long)begin[r + 1], (long long)begin[r]);
    return GDP_OK;
}

/* Where the tokens of rank r begin. */
static int64_t shard_start(const int64_t *begin, int64_t tokens, int size, int r)
{
    if (begin) return begin[r];
    const int64_t each = tokens / size, more = tokens % size;
    return r * each + (r < more ? r : more);
}

/* The rank that holds a token. */
static int rank_of(const int64_t *begin, int64_t tokens, int size, int64_t token)
{
    int low = 0, high = size - 1; /* the last rank that begins at or before the token */
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (shard_start(begin, tokens, size, middle) <= token)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

gdp_status gdp_packed_metadata(const int64_t *cu_seqlens, int64_t sequences, int rank, int size,
                               const int64_t *shard_begin, int64_t *local_cu_seqlens,
                               gdp_packed_shard *shard)
{
    GDPI_TRY(check(cu_seqlens, sequences, rank, size, shard_begin));
    if (!local_cu_seqlens || !shard)
        return gdpi_fail(GDP_STATUS_INVALID_ARGUMENT, "local_cu_seqlens or shard is NULL");
    const int64_t tokens = cu_seqlens[sequences];
    const int64_t low = shard_start(shard_begin, tokens, size, rank);
    const int64_t high = shard_start(shard_begin, tokens, size, rank + 1);
    *shard = (gdp_packed_shard){
        .token_begin = low,
        .token_end = high,
        .sequences = 1,
        .preceding_rank_start = rank,
        .following_rank_stop = rank + 1,
    };
    local_cu_seqlens[0] = 0;
    int64_t s = 0; /* the sequence that holds token `low` */
    while (s < sequences - 1 && cu_seqlens[s + 1] <= low) s++;
    shard->first_sequence = s;
    if (low == high) {
        local_cu_seqlens[1] = 0;
        return GDP_OK;
    }
    if (cu_seqlens[s] < low)
        shard->preceding_rank_start = rank_of(shard_begin, tokens, size, cu_seqlens[s]);
    int64_t local = 0;
    while (cu_seqlens[s + 1] < high) local_cu_seqlens[++local] = cu_seqlens[++s] - low;
    local_cu_seqlens[++local] = high - low;
    shard->sequences = local;
    if (cu_seqlens[s + 1] > high)
        shard->following_rank_stop = rank_of(shard_begin, tokens, size, cu_seqlens[s + 1] - 1) + 1;
    return GDP_OK;
}
