/* Preloaded into a program, it leaves it without a thread to be had. */
#include <errno.h>
#include <pthread.h>

__attribute__((visibility("default"))) int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                                          void* (*run)(void*), void* argument) {
    (void)thread, (void)attributes, (void)run, (void)argument;
    return EAGAIN;
}
