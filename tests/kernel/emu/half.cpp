/* The CUDA half itself, compiled for the emulated device. */
#include "emu/cuda_runtime_api.h"

#include "client/stats/kernel_cuda.cu"
#include "client/stats/cuda_host.cu"

const size_t emu_parameter_bytes = sizeof(struct cuda_launch);

void emu_call(const void *kernel, void *parameters)
{
    typedef void entry(struct cuda_launch);
    ((entry *)kernel)(*(struct cuda_launch *)parameters);
}
