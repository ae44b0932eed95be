/* The device's memory. Each block lies between pages that nobody can touch; the rest of its own
 * first and last page is filled with a pattern, whose change tells of a write beside the block. */
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, ALIGNMENT = 256, PATTERN = 0xA5 };

/* Above this size fresh memory is zero and not NaN: touching all of it would take too long. */
static const size_t largest_poisoned = (size_t)64 << 20;

/* By address. */
static block_of_memory *blocks;
static size_t count, capacity, used;
static int opened;

static bool host_may_look(void)
{
    const char *text = getenv("GDP_EMULATED_HOST_ACCESS");
    return text && *text == '1';
}

/* The first block behind `address`. */
static size_t position(const void *address)
{
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if ((const char *)address < blocks[middle].start)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

const block_of_memory *find_memory(const void *address, size_t bytes)
{
    const size_t at = position(address);
    if (at == 0) return NULL;
    const block_of_memory *block = &blocks[at - 1];
    const size_t offset = (size_t)((const char *)address - block->start);
    return offset <= block->bytes && bytes <= block->bytes - offset ? block : NULL;
}

bool near_memory(const void *address)
{
    for (size_t i = 0; i < count; i++) {
        const block_of_memory *b = &blocks[i];
        const char *first = b->mapping ? b->mapping : b->start;
        if ((const char *)address >= first &&
            (const char *)address <= first + (b->mapping ? b->mapped : b->bytes))
            return true;
    }
    return false;
}

static bool insert(block_of_memory block)
{
    if (count == capacity) {
        const size_t larger = capacity ? 2 * capacity : 64;
        block_of_memory *grown = realloc(blocks, larger * sizeof *blocks);
        if (!grown) return false;
        blocks = grown;
        capacity = larger;
    }
    const size_t at = position(block.start);
    memmove(blocks + at + 1, blocks + at, (count - at) * sizeof *blocks);
    blocks[at] = block;
    count++;
    used += block.kind == MEMORY_REGISTERED ? 0 : block.bytes;
    return true;
}

static char *first_byte(const block_of_memory *block) { return block->mapping + PAGE; }
static char *end_byte(const block_of_memory *block)
{
    return block->mapping + block->mapped - PAGE;
}

static void protect(const block_of_memory *block, int protection)
{
    mprotect(first_byte(block), (size_t)(end_byte(block) - first_byte(block)), protection);
}

void *allocate_memory(size_t bytes, enum memory_kind kind)
{
    if (bytes == 0 || bytes > (size_t)1 << 40) return NULL;
    const size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const size_t inside = (rounded + PAGE - 1) / PAGE * PAGE;
    block_of_memory block = { .bytes = bytes, .kind = kind, .mapped = inside + 2 * PAGE };
    block.mapping =
        mmap(NULL, block.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block.mapping == MAP_FAILED) return NULL;
    block.start = end_byte(&block) - rounded;
    protect(&block, PROT_READ | PROT_WRITE);
    memset(first_byte(&block), PATTERN, (size_t)(block.start - first_byte(&block)));
    if (bytes <= largest_poisoned) memset(block.start, 0xFF, bytes);
    memset(block.start + bytes, PATTERN, rounded - bytes);
    if (kind == MEMORY_DEVICE && !opened && !host_may_look()) protect(&block, PROT_NONE);
    if (insert(block)) return block.start;
    munmap(block.mapping, block.mapped);
    return NULL;
}

bool register_memory(void *start, size_t bytes)
{
    return insert((block_of_memory){ .start = start, .bytes = bytes, .kind = MEMORY_REGISTERED });
}

static void check_pattern(const char *from, const char *to, const block_of_memory *block,
                          const char *after)
{
    for (; from < to; from++) {
        if (*(const unsigned char *)from == PATTERN) continue;
        fprintf(stderr, "emulator: %s: byte %td of a block of %zu bytes was written\n", after,
                from - block->start, block->bytes);
        abort();
    }
}

static void check_block(const block_of_memory *block, const char *after)
{
    if (block->kind == MEMORY_REGISTERED) return;
    check_pattern(first_byte(block), block->start, block, after);
    check_pattern(block->start + block->bytes, end_byte(block), block, after);
}

void check_guards(const char *after)
{
    for (size_t i = 0; i < count; i++) check_block(&blocks[i], after);
}

bool free_memory(void *start, bool of_device)
{
    const size_t at = position(start);
    if (at == 0 || blocks[at - 1].start != (char *)start) return false;
    const block_of_memory block = blocks[at - 1];
    if (of_device != (block.kind == MEMORY_DEVICE || block.kind == MEMORY_MANAGED)) return false;
    if (block.kind != MEMORY_REGISTERED) {
        protect(&block, PROT_READ | PROT_WRITE);
        check_block(&block, "found when it is freed");
        munmap(block.mapping, block.mapped);
        used -= block.bytes;
    }
    memmove(blocks + at - 1, blocks + at, (count - at) * sizeof *blocks);
    count--;
    return true;
}

size_t used_memory(void) { return used; }

static void protect_all(int protection)
{
    for (size_t i = 0; i < count; i++)
        if (blocks[i].kind == MEMORY_DEVICE) protect(&blocks[i], protection);
}

void open_memory(void)
{
    if (opened++ == 0 && !host_may_look()) protect_all(PROT_READ | PROT_WRITE);
}

void close_memory(void)
{
    if (--opened == 0 && !host_may_look()) protect_all(PROT_NONE);
}
