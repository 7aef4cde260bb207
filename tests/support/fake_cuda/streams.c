/* Streams, what they still have to do, captures, graphs and events. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

struct CUevent_st {
    int recorded;
};
struct CUgraphExec_st {
    struct operations operations;
};

static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st* streams; /* all that there are */

/* ---- What is to be done */

static void run(const struct operation* operation) {
    if (operation->from != NULL)
        memcpy(operation->to, operation->from, operation->bytes);
    else
        memset(operation->to, operation->value, operation->bytes);
}

static void append(struct operations* to, struct operation operation) {
    if (to->count == to->capacity) {
        to->capacity = to->capacity == 0 ? 8 : 2 * to->capacity;
        to->list = realloc(to->list, to->capacity * sizeof *to->list);
    }
    to->list[to->count++] = operation;
}

static void run_all(const struct operations* operations) {
    for (size_t i = 0; i < operations->count; ++i) run(&operations->list[i]);
}

static void do_or_defer(struct operations* pending, struct operation operation) {
    if (fake_state.defer)
        append(pending, operation);
    else
        run(&operation);
}

/* REQUIRES: streams_lock is held. */
static void finish(struct operations* pending) {
    run_all(pending);
    free(pending->list);
    *pending = (struct operations){0};
}

static struct operations* pending_of(CUcontext context, CUstream stream) {
    return stream == NULL ? &context->pending : &stream->pending;
}

void fake_enqueue(CUcontext context, CUstream stream, struct operation operation) {
    pthread_mutex_lock(&streams_lock);
    if (stream != NULL && stream->graph != NULL)
        append(&stream->graph->operations, operation);
    else
        do_or_defer(pending_of(context, stream), operation);
    pthread_mutex_unlock(&streams_lock);
}

void fake_finish(struct operations* pending) {
    pthread_mutex_lock(&streams_lock);
    finish(pending);
    pthread_mutex_unlock(&streams_lock);
}

void fake_finish_device(int device) {
    pthread_mutex_lock(&streams_lock);
    for (CUstream stream = streams; stream != NULL; stream = stream->next)
        if (stream->context->device == device) finish(&stream->pending);
    pthread_mutex_unlock(&streams_lock);
}

/* ---- Captures */

static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

int fake_lose_captures(CUcontext context, enum fake_hazard hazard) {
    int lost = 0;
    pthread_mutex_lock(&streams_lock);
    for (CUstream stream = streams; stream != NULL; stream = stream->next) {
        if (stream->graph == NULL || stream->context != context) continue;
        if (hazard == FAKE_BY_DEFAULT_STREAM && !stream->is_blocking) continue;
        if (hazard == FAKE_BY_ANY_THREAD) {
            const int is_own = pthread_equal(stream->capturer, pthread_self());
            if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
                stream->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
                continue;
            const int only_own = thread_mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ||
                                 stream->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            if (only_own && !is_own) continue;
        }
        if (!stream->capture_lost) COUNT(lost_captures);
        stream->capture_lost = lost = 1;
    }
    pthread_mutex_unlock(&streams_lock);
    return lost;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    const CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    if (stream == NULL || stream->graph != NULL) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    COUNT(captures);
    pthread_mutex_lock(&streams_lock);
    stream->graph = calloc(1, sizeof *stream->graph);
    stream->mode = mode;
    stream->capturer = pthread_self();
    stream->capture_lost = 0;
    pthread_mutex_unlock(&streams_lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    if (stream->graph == NULL) return CUDA_ERROR_ILLEGAL_STATE;
    pthread_mutex_lock(&streams_lock);
    *graph = stream->graph;
    stream->graph = NULL;
    pthread_mutex_unlock(&streams_lock);
    if (!stream->capture_lost) return CUDA_SUCCESS;
    cuGraphDestroy(*graph);
    *graph = NULL;
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (stream == NULL) {
        CUresult result = CUDA_SUCCESS;
        pthread_mutex_lock(&streams_lock);
        for (CUstream other = streams; other != NULL; other = other->next)
            if (other->graph != NULL && other->is_blocking && other->context == fake_current())
                result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        pthread_mutex_unlock(&streams_lock);
        return result;
    }
    if (stream->graph != NULL)
        *status =
            stream->capture_lost ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

/* ---- Streams */

EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    if (fake_current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    *stream = calloc(1, sizeof **stream);
    (*stream)->context = fake_current();
    (*stream)->is_blocking = (flags & CU_STREAM_NON_BLOCKING) == 0;
    pthread_mutex_lock(&streams_lock);
    (*stream)->next = streams;
    streams = *stream;
    pthread_mutex_unlock(&streams_lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy(CUstream stream) {
    pthread_mutex_lock(&streams_lock);
    CUstream* at = &streams;
    while (*at != NULL && *at != stream) at = &(*at)->next;
    if (*at != NULL) *at = stream->next;
    finish(&stream->pending);
    pthread_mutex_unlock(&streams_lock);
    if (stream->graph != NULL) cuGraphDestroy(stream->graph);
    free(stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    const CUcontext of = stream == NULL ? fake_current() : stream->context;
    if (of != NULL && fake_lose_captures(of, FAKE_BY_ANY_THREAD))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream == NULL) {
        const CUcontext context = fake_current();
        if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
        COUNT(default_stream_waits);
        if (fake_lose_captures(context, FAKE_BY_DEFAULT_STREAM)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        fake_finish(&context->pending);
        return CUDA_SUCCESS;
    }
    COUNT(stream_waits);
    fake_state.last_wait = stream;
    if (stream->graph != NULL) {
        if (!stream->capture_lost) COUNT(lost_captures);
        stream->capture_lost = 1;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    fake_finish(&stream->pending);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
    const CUcontext context = fake_current();
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    COUNT(context_waits);
    if (fake_lose_captures(context, FAKE_BY_CONTEXT)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    fake_finish(&context->pending);
    fake_finish_device(context->device);
    return CUDA_SUCCESS;
}

/* ---- Graphs */

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
    (void)flags;
    *exec = calloc(1, sizeof **exec);
    for (size_t i = 0; i < graph->operations.count; ++i)
        append(&(*exec)->operations, graph->operations.list[i]);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    free(graph->operations.list);
    free(graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    const CUcontext context = stream == NULL ? fake_current() : stream->context;
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    COUNT(graph_launches);
    for (size_t i = 0; i < exec->operations.count; ++i)
        fake_enqueue(context, stream, exec->operations.list[i]);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
    free(exec->operations.list);
    free(exec);
    return CUDA_SUCCESS;
}

/* ---- Events */

EXPORT CUresult cuEventCreate(CUevent* event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    return fake_current() == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy(CUevent event) {
    free(event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    (void)stream;
    event->recorded = 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    (void)event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    *milliseconds = 1.0f;
    return start->recorded && end->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
