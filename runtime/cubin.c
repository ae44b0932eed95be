/* What a kernel needs, read from its cubin: an ELF file whose section .nv.info lists attributes. The
 * file may come from a disk, so nothing in it is believed before it is checked. */
#include <elf.h>
#include <string.h>

#include "internal.h"

/* An attribute is a byte each of format and number, and 16 bits: a value, or the bytes that follow. */
enum { FORMAT_SIZED = 4, ATTRIBUTE_FRAME_SIZE = 0x11, ATTRIBUTE_REGISTERS = 0x2f };

/* Shared memory that the system takes of a block, from compute capability 8.0 on. */
enum { SYSTEM_SHARED = 1024 };

typedef struct cubin {
    const unsigned char *data;
    size_t size;
    Elf64_Ehdr header;
    Elf64_Shdr names;
} cubin;

static bool read_at(const cubin *c, uint64_t offset, void *out, size_t size)
{
    if (offset > c->size || size > c->size - offset) return false;
    memcpy(out, c->data + offset, size);
    return true;
}

static bool read_section(const cubin *c, unsigned index, Elf64_Shdr *section)
{
    const uint64_t step = (uint64_t)index * sizeof *section;
    return index < c->header.e_shnum && c->header.e_shoff <= c->size &&
           read_at(c, c->header.e_shoff + step, section, sizeof *section);
}

/* Whether the text at `offset` of a string section is `name`. */
static bool is_named(const cubin *c, const Elf64_Shdr *strings, uint32_t offset, const char *name)
{
    const size_t length = strlen(name) + 1;
    return strings->sh_offset <= c->size && strings->sh_size <= c->size - strings->sh_offset &&
           offset <= strings->sh_size && length <= strings->sh_size - offset &&
           memcmp(c->data + strings->sh_offset + offset, name, length) == 0;
}

static bool find_section(const cubin *c, const char *name, Elf64_Shdr *section)
{
    for (unsigned i = 0; read_section(c, i, section); i++)
        if (is_named(c, &c->names, section->sh_name, name)) return true;
    return false;
}

static bool open_cubin(const gdpi_blob *binary, cubin *c)
{
    *c = (cubin){ .data = binary->data, .size = binary->size };
    return read_at(c, 0, &c->header, sizeof c->header) &&
           memcmp(c->header.e_ident, ELFMAG, SELFMAG) == 0 &&
           c->header.e_ident[EI_CLASS] == ELFCLASS64 && c->header.e_ident[EI_DATA] == ELFDATA2LSB &&
           c->header.e_shentsize == sizeof(Elf64_Shdr) &&
           read_section(c, c->header.e_shstrndx, &c->names);
}

static bool find_symbol(const cubin *c, const char *symbol, uint32_t *index)
{
    Elf64_Shdr table, strings;
    Elf64_Sym entry;
    if (!find_section(c, ".symtab", &table) || !read_section(c, table.sh_link, &strings))
        return false;
    if (table.sh_offset > c->size || table.sh_size > c->size - table.sh_offset) return false;
    for (uint32_t i = 0; i < table.sh_size / sizeof entry; i++)
        if (read_at(c, table.sh_offset + i * sizeof entry, &entry, sizeof entry) &&
            is_named(c, &strings, entry.st_name, symbol)) {
            *index = i;
            return true;
        }
    return false;
}

/* Reads the attributes of symbol `index`; true where its registers are among them. */
static bool read_attributes(const cubin *c, uint32_t index, gdpi_cubin_usage *usage)
{
    Elf64_Shdr info;
    bool found = false;
    if (!find_section(c, ".nv.info", &info)) return false;
    if (info.sh_offset > c->size || info.sh_size > c->size - info.sh_offset) return false;
    const uint64_t end = info.sh_offset + info.sh_size;
    for (uint64_t at = info.sh_offset; at + 4 <= end;) {
        unsigned char kind[2];
        uint16_t size;
        uint32_t pair[2] = { 0, 0 };
        if (!read_at(c, at, kind, sizeof kind) || !read_at(c, at + 2, &size, sizeof size))
            return false;
        at += 4;
        if (kind[0] != FORMAT_SIZED) continue;
        if (size > end - at) return false;
        if (size >= sizeof pair) read_at(c, at, pair, sizeof pair);
        at += size;
        if (size < sizeof pair || pair[0] != index) continue;
        if (kind[1] == ATTRIBUTE_REGISTERS) {
            usage->registers = (int)(pair[1] & 0xffff);
            found = true;
        }
        if (kind[1] == ATTRIBUTE_FRAME_SIZE) usage->local_bytes = (int)(pair[1] & 0xffffff);
    }
    return found;
}

gdp_status gdpi_cubin_read(const gdpi_blob *binary, const char *symbol, gdpi_cubin_usage *usage)
{
    cubin c;
    uint32_t index;
    Elf64_Shdr section;
    char name[128] = ".nv.shared.";
    *usage = (gdpi_cubin_usage){ 0, 0, 0 };
    if (strlen(symbol) >= sizeof name - strlen(name) || !open_cubin(binary, &c) ||
        !find_symbol(&c, symbol, &index) || !read_attributes(&c, index, usage))
        return gdpi_fail(GDP_STATUS_INTERNAL,
                         "%s: what it needs cannot be read from its binary of %zu bytes", symbol,
                         binary->size);
    if (find_section(&c, strcat(name, symbol), &section)) usage->shared_bytes = section.sh_size;
    /* Where this section is, the system's part is counted with every kernel's. */
    if (find_section(&c, ".nv.shared.reserved.0", &section) && usage->shared_bytes >= SYSTEM_SHARED)
        usage->shared_bytes -= SYSTEM_SHARED;
    return GDP_OK;
}

/* ---- occupancy ---- */

typedef struct limits {
    int arch, threads, blocks; /* of a multiprocessor */
    size_t shared;
} limits;

static const limits LIMITS[] = {
    { 80, 2048, 32, 164 << 10 },  { 86, 1536, 16, 100 << 10 },  { 87, 1536, 16, 164 << 10 },
    { 89, 1536, 24, 100 << 10 },  { 90, 2048, 32, 228 << 10 },  { 100, 2048, 32, 228 << 10 },
    { 103, 2048, 32, 228 << 10 }, { 110, 1536, 24, 228 << 10 }, { 120, 1536, 24, 100 << 10 },
    { 121, 1536, 24, 100 << 10 },
};

static int least(int a, int b) { return a < b ? a : b; }

int gdpi_cubin_blocks(int64_t arch, int registers, int threads, size_t shared_bytes)
{
    enum { WARP = 32, QUARTER = 16 * 1024, REGISTER_UNIT = 256, SHARED_UNIT = 128 };
    const limits *of = NULL, unknown = { 0, 1536, 16, 100 << 10 };
    for (size_t i = 0; i < sizeof LIMITS / sizeof *LIMITS; i++)
        if (LIMITS[i].arch == arch) of = &LIMITS[i];
    if (!of) of = &unknown;
    if (threads < 1 || registers < 0) return 0;
    const int warps = (threads + WARP - 1) / WARP;
    int blocks = least(of->blocks, of->threads / (warps * WARP));
    /* Each quarter of a multiprocessor has registers of its own, given out by the warp. */
    const int unit = (registers * WARP + REGISTER_UNIT - 1) / REGISTER_UNIT * REGISTER_UNIT;
    if (unit > 0) blocks = least(blocks, QUARTER / unit * 4 / warps);
    const size_t shared =
        (shared_bytes + SYSTEM_SHARED + SHARED_UNIT - 1) / SHARED_UNIT * SHARED_UNIT;
    return least(blocks, (int)(of->shared / shared));
}
