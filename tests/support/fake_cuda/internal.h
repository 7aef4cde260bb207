/* What the files of the stub share. */
#ifndef ATTNSMITH_TESTS_SUPPORT_FAKE_CUDA_INTERNAL_H
#define ATTNSMITH_TESTS_SUPPORT_FAKE_CUDA_INTERNAL_H

#include <cuda.h>
#include <pthread.h>

#include "fake_cuda.h"

/* <cuda.h> renames this one to a version that drivers before 12.8 lack; the library asks for the old name. */
#undef cuEventElapsedTime

#define EXPORT __attribute__((visibility("default")))
#define COUNT(counter) __atomic_add_fetch(&fake_state.counter, 1, __ATOMIC_RELAXED)

enum { MAX_DEVICES = 8, SHARED_OPTIN = 232448, SHARED_DEFAULT = 49152 };

/* Copies and fills that are still to happen. */
struct operation {
    void* to;
    const void* from; /* NULL: a fill */
    unsigned char value;
    size_t bytes;
};
struct operations {
    struct operation* list;
    size_t count, capacity;
};

struct CUctx_st {
    int device;
    struct operations pending; /* of its default stream */
};
struct CUgraph_st {
    struct operations operations;
};
struct CUstream_st {
    CUcontext context;
    int is_blocking; /* waits for the default stream, and is waited for */
    CUgraph graph;   /* while it captures; else NULL */
    CUstreamCaptureMode mode;
    pthread_t capturer;
    int capture_lost;
    struct operations pending;
    struct CUstream_st* next; /* of all */
};

extern struct fake_cuda_state fake_state;

struct fake_device {
    int sm, sm_count;
    size_t memory, in_use;
};
extern struct fake_device fake_devices[MAX_DEVICES];
extern int fake_device_count;
extern int fake_refuse; /* every library */

/* Gives the stream, or the context's default stream, something to do: at once, later, or in the capture's
 * graph. */
void fake_enqueue(CUcontext context, CUstream stream, struct operation operation);
void fake_finish(struct operations* pending);
void fake_finish_device(int device); /* of all streams that were created */

/* What captures do not bear. The first two are of streams of the context, whose captures are lost; whether
 * the third is, depends on the modes of the capture and of the thread. */
enum fake_hazard { FAKE_BY_CONTEXT, FAKE_BY_DEFAULT_STREAM, FAKE_BY_ANY_THREAD };
/* 1 where a capture was lost. */
int fake_lose_captures(CUcontext context, enum fake_hazard hazard);

/* The calling thread's current context, or NULL. */
CUcontext fake_current(void);

struct entry {
    int key;
    const char* name;
    int value;
};
const struct entry* fake_find(const struct entry* table, size_t count, int key);
#define FIND(table, key) fake_find(table, sizeof(table) / sizeof *(table), key)

#endif
