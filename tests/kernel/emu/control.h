/* What a test asks of the emulated device. The functions are of the library
 * that it opens, beside the half's symbol. */
#ifndef EMU_CONTROL_H
#define EMU_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EMU_API __attribute__((visibility("default")))

/* Warps of a block (1, 2, 4, 8) and doublings of a chunk. */
extern EMU_API uint32_t trd_cuda_emulated_geometry[2];

/* Blocks under way at once (1 to 4); 0: first to last, 1: last to first. */
EMU_API void emu_control_order(unsigned resident, unsigned how,
                               uint64_t seed);

/* A stream runs a launch at once; one that is held, when it is released. */
EMU_API void *emu_stream_new(void);
EMU_API void emu_stream_free(void *stream);
EMU_API void emu_stream_hold(void *stream, int held);

/* From begin on launches go into a graph, which end returns. */
EMU_API void emu_capture_begin(void *stream);
EMU_API void *emu_capture_end(void *stream);
EMU_API void emu_graph_run(void *graph);
EMU_API void emu_graph_free(void *graph);

/* The next launches fail; memory that is still allocated. */
EMU_API void emu_fail_launches(unsigned n);
EMU_API void emu_fail_memory(unsigned after); /* so many calls; 0: never */
EMU_API size_t emu_allocations(void);
EMU_API size_t emu_launches(void);
EMU_API int emu_device(void); /* of this thread */
EMU_API void emu_device_set(int device);

#ifdef __cplusplus
}
#endif

#endif
