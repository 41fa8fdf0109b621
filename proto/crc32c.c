/* CRC-32C by the processor's instruction where there is one, else by tables,
 * eight bytes a turn. Pure; no state: the tables are constant data made by
 * crc32c_tables.py from the polynomial. */
#include "proto/crc32c.h"

#include <string.h>

#include "proto/crc32c_tables.h"

uint32_t crc32c_by_tables(uint32_t crc, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    uint32_t c = ~crc;
    for (; n >= 8; p += 8, n -= 8) {
        uint32_t low = c ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 |
                            (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        c = crc32c_table[7][low & 0xff] ^ crc32c_table[6][low >> 8 & 0xff] ^
            crc32c_table[5][low >> 16 & 0xff] ^ crc32c_table[4][low >> 24] ^
            crc32c_table[3][p[4]] ^ crc32c_table[2][p[5]] ^
            crc32c_table[1][p[6]] ^ crc32c_table[0][p[7]];
    }
    for (; n; p++, n--)
        c = crc32c_table[0][(c ^ *p) & 0xff] ^ c >> 8;
    return ~c;
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2"))) static uint32_t
by_instruction(uint32_t crc, const uint8_t *p, size_t n)
{
    uint64_t c = ~crc;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        c = __builtin_ia32_crc32di(c, word);
    }
    for (; n; p++, n--)
        c = __builtin_ia32_crc32qi((uint32_t)c, *p);
    return ~(uint32_t)c;
}

uint32_t crc32c(uint32_t crc, const void *bytes, size_t n)
{
    if (__builtin_cpu_supports("sse4.2"))
        return by_instruction(crc, bytes, n);
    return crc32c_by_tables(crc, bytes, n);
}
#else
uint32_t crc32c(uint32_t crc, const void *bytes, size_t n)
{
    return crc32c_by_tables(crc, bytes, n);
}
#endif
