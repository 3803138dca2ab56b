/* Cubins and fat binaries: names, parameters and resources of kernels. The machine code is not read. */
#include "softgpu/driver/internal.h"

#include "fat_binary.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum {
    EM_CUDA_CODE = 190,
    INFO_PARAM = 0x17, /* the attribute that describes one parameter */
    INFO_SIZED = 4,    /* the format of attributes that carry a payload */
    INFO_FRAME = 0x11, /* a function's own stack: its symbol, its bytes */
    INFO_STACK = 0x12, /* including the functions that it calls */
    PARAM_BYTES = 12,
    TEXT_LIMIT = 1 << 28,
};

struct file {
    const unsigned char *data;
    uint64_t bytes;
};

static int fits(const struct file *file, uint64_t offset, uint64_t bytes)
{
    return offset <= file->bytes && bytes <= file->bytes - offset;
}

/* Determine the size of the file from its tables and sections. */
static int measure(struct file *file)
{
    Elf64_Ehdr head;
    memcpy(&head, file->data, sizeof head);
    uint64_t end = head.e_shoff + (uint64_t)head.e_shnum * head.e_shentsize;
    uint64_t other = head.e_phoff + (uint64_t)head.e_phnum * head.e_phentsize;
    if (head.e_shoff > TEXT_LIMIT || head.e_phoff > TEXT_LIMIT || head.e_shentsize != sizeof(Elf64_Shdr))
        return -1;
    for (uint32_t i = 0; i < head.e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, file->data + head.e_shoff + i * sizeof section, sizeof section);
        if (section.sh_type == SHT_NOBITS || section.sh_offset > TEXT_LIMIT || section.sh_size > TEXT_LIMIT)
            continue;
        if (section.sh_offset + section.sh_size > end)
            end = section.sh_offset + section.sh_size;
    }
    file->bytes = end > other ? end : other;
    return 0;
}

static int section_at(const struct file *file, const Elf64_Ehdr *head, uint32_t index, Elf64_Shdr *section)
{
    uint64_t offset = head->e_shoff + (uint64_t)index * sizeof *section;
    if (index >= head->e_shnum || !fits(file, offset, sizeof *section))
        return -1;
    memcpy(section, file->data + offset, sizeof *section);
    return section->sh_type == SHT_NOBITS || fits(file, section->sh_offset, section->sh_size) ? 0 : -1;
}

static const char *name_of(const struct file *file, const Elf64_Shdr *names, uint32_t offset)
{
    if (offset >= names->sh_size)
        return NULL;
    const char *name = (const char *)file->data + names->sh_offset + offset;
    return memchr(name, 0, names->sh_size - offset) ? name : NULL;
}

/* Parameters are listed in any order and sorted by their ordinal. */
static void parameters(const struct file *file, const Elf64_Shdr *info, struct sg_kernel *kernel)
{
    const unsigned char *at = file->data + info->sh_offset, *end = at + info->sh_size;
    while (end - at >= 4) {
        uint16_t bytes;
        memcpy(&bytes, at + 2, sizeof bytes);
        int is_sized = at[0] == INFO_SIZED, is_param = is_sized && at[1] == INFO_PARAM && bytes == PARAM_BYTES;
        at += 4;
        if (!is_sized)
            continue;
        if (end - at < bytes)
            return;
        if (is_param) {
            uint16_t ordinal, offset;
            uint32_t word;
            memcpy(&ordinal, at + 4, sizeof ordinal);
            memcpy(&offset, at + 6, sizeof offset);
            memcpy(&word, at + 8, sizeof word);
            if (ordinal < SG_MAX_PARAMS) {
                kernel->param_offset[ordinal] = offset;
                kernel->param_bytes[ordinal] = word >> 18;
                if (kernel->param_count <= ordinal)
                    kernel->param_count = ordinal + 1u;
            }
        }
        at += bytes;
    }
}

/* Return a symbol and its name, which is in the section that the table links to. */
static const char *symbol_at(const struct file *file, const Elf64_Ehdr *head, const Elf64_Shdr *table, uint64_t index,
                             Elf64_Sym *symbol)
{
    Elf64_Shdr strings;
    if (index >= table->sh_size / sizeof *symbol || section_at(file, head, table->sh_link, &strings) < 0 ||
        strings.sh_type == SHT_NOBITS)
        return NULL;
    memcpy(symbol, file->data + table->sh_offset + index * sizeof *symbol, sizeof *symbol);
    return name_of(file, &strings, symbol->st_name);
}

/* Set the kernel's local memory to its stack size. The attributes of the file identify functions by symbol. */
static void local_memory(const struct file *file, const Elf64_Ehdr *head, const Elf64_Shdr *info,
                         struct sg_kernel *kernel)
{
    const unsigned char *at = file->data + info->sh_offset, *end = at + info->sh_size;
    Elf64_Shdr table;
    Elf64_Sym symbol;
    if (section_at(file, head, info->sh_link, &table) < 0 || table.sh_type != SHT_SYMTAB)
        return;
    while (end - at >= 4) {
        uint16_t bytes;
        uint32_t pair[2];
        int is_sized = at[0] == INFO_SIZED, is_stack = at[1] == INFO_FRAME || at[1] == INFO_STACK;
        memcpy(&bytes, at + 2, sizeof bytes);
        at += 4;
        if (!is_sized)
            continue;
        if (end - at < bytes)
            return;
        if (is_stack && bytes == sizeof pair) {
            memcpy(pair, at, sizeof pair);
            const char *name = symbol_at(file, head, &table, pair[0], &symbol);
            if (name && strcmp(name, kernel->name) == 0 && pair[1] > kernel->local_bytes && pair[1] < 1 << 20)
                kernel->local_bytes = pair[1];
        }
        at += bytes;
    }
}

/* Variables are the objects in the sections of global and constant memory. */
static CUresult variables(const struct file *file, const Elf64_Ehdr *head, const Elf64_Shdr *names,
                          const Elf64_Shdr *table, struct sg_image *image)
{
    for (uint64_t i = 0; i < table->sh_size / sizeof(Elf64_Sym); i++) {
        Elf64_Sym symbol;
        Elf64_Shdr section;
        const char *name = symbol_at(file, head, table, i, &symbol), *section_name;
        if (!name || !*name || ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || !symbol.st_size ||
            section_at(file, head, symbol.st_shndx, &section) < 0)
            continue;
        section_name = name_of(file, names, section.sh_name);
        if (!section_name || (strcmp(section_name, ".nv.global") != 0 && strcmp(section_name, ".nv.global.init") != 0 &&
                              strcmp(section_name, ".nv.constant3") != 0))
            continue;
        if (symbol.st_value > section.sh_size || symbol.st_size > section.sh_size - symbol.st_value)
            return CUDA_ERROR_INVALID_IMAGE;
        const void *initial =
            section.sh_type == SHT_NOBITS ? NULL : file->data + section.sh_offset + symbol.st_value;
        if (sg_image_variable(image, name, strlen(name), symbol.st_size, initial) < 0)
            return CUDA_ERROR_INVALID_IMAGE;
    }
    return CUDA_SUCCESS;
}

static void details(const struct file *file, const Elf64_Ehdr *head, const Elf64_Shdr *names, struct sg_kernel *kernel)
{
    static const char info_head[] = ".nv.info.", shared_head[] = ".nv.shared.";
    for (uint32_t i = 0; i < head->e_shnum; i++) {
        Elf64_Shdr section;
        if (section_at(file, head, i, &section) < 0)
            continue;
        const char *name = name_of(file, names, section.sh_name);
        if (!name)
            continue;
        if (strncmp(name, info_head, sizeof info_head - 1) == 0 &&
            strcmp(name + sizeof info_head - 1, kernel->name) == 0 && section.sh_type != SHT_NOBITS)
            parameters(file, &section, kernel);
        if (strcmp(name, ".nv.info") == 0 && section.sh_type != SHT_NOBITS)
            local_memory(file, head, &section, kernel);
        if (strcmp(name, ".nv.constant3") == 0)
            kernel->const_bytes = section.sh_size <= 1 << 16 ? (uint32_t)section.sh_size : 0;
        if (strncmp(name, shared_head, sizeof shared_head - 1) == 0 &&
            strcmp(name + sizeof shared_head - 1, kernel->name) == 0)
            kernel->shared_bytes = section.sh_size < 1 << 20 ? (uint32_t)section.sh_size : 0;
    }
}

CUresult sg_image_elf(const unsigned char *data, size_t bytes, struct sg_image *image)
{
    static const char text_head[] = ".text.";
    struct file file = {data, bytes};
    Elf64_Ehdr head;
    Elf64_Shdr names;
    if (bytes && bytes < sizeof head)
        return CUDA_ERROR_INVALID_IMAGE;
    memcpy(&head, data, sizeof head);
    if (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64)
        return CUDA_ERROR_INVALID_IMAGE;
    if (head.e_machine != EM_CUDA_CODE)
        return CUDA_ERROR_INVALID_IMAGE;
    if (!bytes && measure(&file) < 0)
        return CUDA_ERROR_INVALID_IMAGE;
    image->code_bytes = file.bytes;
    image->is_machine_code = 1;
    if (head.e_shentsize != sizeof names || section_at(&file, &head, head.e_shstrndx, &names) < 0 ||
        names.sh_type == SHT_NOBITS)
        return CUDA_ERROR_INVALID_IMAGE;
    for (uint32_t i = 0; i < head.e_shnum; i++) {
        Elf64_Shdr section;
        if (section_at(&file, &head, i, &section) < 0)
            return CUDA_ERROR_INVALID_IMAGE;
        CUresult result = section.sh_type == SHT_SYMTAB ? variables(&file, &head, &names, &section, image)
                                                        : CUDA_SUCCESS;
        if (result != CUDA_SUCCESS)
            return result;
        const char *name = name_of(&file, &names, section.sh_name);
        if (!name || strncmp(name, text_head, sizeof text_head - 1) != 0)
            continue;
        name += sizeof text_head - 1;
        struct sg_kernel *kernel = sg_image_add(image, name, strlen(name));
        if (!kernel)
            return CUDA_ERROR_INVALID_IMAGE;
        kernel->registers = section.sh_info >> 24 ? section.sh_info >> 24 : 32;
        /* From ABI version 8 on, the architecture is in a different field of the flags. */
        kernel->binary_version = (int)(head.e_flags >> (head.e_ident[EI_ABIVERSION] >= 8 ? 8 : 0) & 0xff);
        details(&file, &head, &names, kernel);
    }
    return CUDA_SUCCESS;
}

static CUresult read_entry(const struct ct_fatbin_entry *entry, const unsigned char *payload, struct sg_image *image)
{
    unsigned char *full = NULL;
    uint64_t bytes = entry->bytes;
    CUresult result = CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (entry->flags & CT_FATBIN_ZSTD)
        return result;
    if (entry->flags & CT_FATBIN_LZ4) {
        if (entry->full_bytes > TEXT_LIMIT || entry->packed_bytes > entry->bytes)
            return CUDA_ERROR_INVALID_IMAGE;
        bytes = entry->full_bytes;
        full = malloc(bytes + 1);
        if (!full || ct_lz4_expand(payload, entry->packed_bytes, full, bytes) < 0) {
            free(full);
            return CUDA_ERROR_INVALID_IMAGE;
        }
        payload = full;
    }
    if (entry->kind == CT_FATBIN_ELF)
        result = sg_image_elf(payload, bytes ? bytes : 1, image);
    else if (entry->kind == CT_FATBIN_PTX)
        result = sg_image_ptx((const char *)payload, strnlen((const char *)payload, bytes), image);
    free(full);
    return result;
}

/* Add the PTX of a later entry to an image that was read from machine code, so that its kernels can be executed. */
static void add_code(const struct ct_fatbin_entry *entry, const unsigned char *payload, struct sg_image *image)
{
    struct sg_image other = {0};
    if (entry->kind != CT_FATBIN_PTX || image->text_count || read_entry(entry, payload, &other) != CUDA_SUCCESS)
        return;
    for (size_t i = 0; i < other.text_count; i++)
        sg_image_add_text(image, other.texts[i], strlen(other.texts[i]));
    sg_image_free(&other);
}

/* Use the first readable entry, because all entries contain the same kernels for different devices. */
CUresult sg_image_fatbin(const unsigned char *data, size_t bytes, struct sg_image *image)
{
    struct file file = {data, bytes ? bytes : 16};
    uint16_t head_bytes;
    uint64_t body_bytes;
    if (!fits(&file, 0, 16))
        return CUDA_ERROR_INVALID_IMAGE;
    ct_fatbin_head(data, &head_bytes, &body_bytes);
    if (body_bytes > TEXT_LIMIT)
        return CUDA_ERROR_INVALID_IMAGE;
    if (!bytes)
        file.bytes = head_bytes + body_bytes;
    uint64_t at = head_bytes, end = head_bytes + body_bytes;
    if (end > file.bytes)
        return CUDA_ERROR_INVALID_IMAGE;
    CUresult result = CUDA_ERROR_NO_BINARY_FOR_GPU;
    while (end - at >= CT_FATBIN_ENTRY_BYTES) {
        const struct ct_fatbin_entry entry = ct_fatbin_entry_at(data + at);
        if (!ct_fatbin_fits(&entry, end - at))
            return result == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
        if (result == CUDA_SUCCESS) {
            add_code(&entry, data + at + entry.head_bytes, image);
        } else {
            result = read_entry(&entry, data + at + entry.head_bytes, image);
            if (result != CUDA_SUCCESS)
                sg_image_free(image);
        }
        at += entry.head_bytes + entry.bytes;
    }
    return result;
}
