/* CRC-32C (Castagnoli, reflected polynomial 0x82f63b78), as in RFC 3720. */
#ifndef PROTO_CRC32C_H
#define PROTO_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of n bytes that follow bytes whose checksum is crc; 0 for
 * none. Threads: any. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t n);
/* The same without the processor's instruction for it. */
uint32_t crc32c_by_tables(uint32_t crc, const void *bytes, size_t n);

#endif
