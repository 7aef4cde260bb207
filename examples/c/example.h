/* What the examples share: a failure ends the program, device memory of values, and tensors over it. */
#ifndef ATTNSMITH_EXAMPLES_EXAMPLE_H
#define ATTNSMITH_EXAMPLES_EXAMPLE_H

#include <attnsmith/attnsmith.h>
#include <stdio.h>
#include <stdlib.h>

static const uint16_t one_in_bf16 = 0x3f80;

/* Ends the program with the error's message, where there is one. */
static inline void check(attnsmith_code code, attnsmith_error* const* error) {
    if (code == ATTNSMITH_OK) return;
    fprintf(stderr, "%s\n", attnsmith_error_message(*error));
    exit(1);
}

static inline attnsmith_buffer* allocate(attnsmith_runtime* runtime, size_t bytes) {
    attnsmith_error* error = NULL;
    attnsmith_buffer* buffer = NULL;
    check(attnsmith_buffer_allocate(runtime, ATTNSMITH_CURRENT_DEVICE, bytes, &buffer, &error), &error);
    return buffer;
}

static inline attnsmith_buffer* upload(attnsmith_runtime* runtime, const void* values, size_t bytes) {
    attnsmith_error* error = NULL;
    attnsmith_buffer* const buffer = allocate(runtime, bytes);
    check(attnsmith_buffer_upload(buffer, values, bytes, 0, &error), &error);
    return buffer;
}

/* Device memory of `count` times the same 16 bits. */
static inline attnsmith_buffer* upload_filled(attnsmith_runtime* runtime, uint16_t value, size_t count) {
    uint16_t* const values = malloc(count * sizeof *values);
    if (values == NULL) abort();
    for (size_t i = 0; i < count; ++i) values[i] = value;
    attnsmith_buffer* const buffer = upload(runtime, values, count * sizeof *values);
    free(values);
    return buffer;
}

/* How many of the 16-bit numbers in a buffer are another one. */
static inline int count_others(const attnsmith_buffer* buffer, uint16_t value) {
    attnsmith_error* error = NULL;
    const size_t bytes = attnsmith_buffer_bytes(buffer);
    uint16_t* const values = malloc(bytes);
    if (values == NULL) abort();
    check(attnsmith_buffer_download(buffer, values, bytes, 0, &error), &error);
    int others = 0;
    for (size_t i = 0; i < bytes / sizeof *values; ++i) others += values[i] != value;
    free(values);
    return others;
}

/* A compact tensor over a buffer, as DLPack has it; `shape` must outlive it. */
static inline attnsmith_dl_tensor tensor(attnsmith_buffer* buffer, int32_t rank, int64_t* shape, uint8_t code,
                                         uint8_t bits) {
    const attnsmith_dl_tensor made = {
        attnsmith_buffer_data(buffer), {ATTNSMITH_DL_CUDA, 0}, rank, {code, bits, 1}, shape, NULL, 0};
    return made;
}

#endif
