/* Fills the driver table from a resolver, and offers one over the platform's dynamic loader. Links to nothing of CUDA. */
#include "cuda.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#define KILN_CU_ENTRY(field, symbol, need, parameters) {symbol, offsetof(struct kiln_cu_api, field), need},

static const struct kiln_cu_symbol symbols[] = {KILN_CU_FUNCTIONS(KILN_CU_ENTRY)};

const struct kiln_cu_symbol *kiln_cu_symbols(size_t *count) {
    *count = sizeof(symbols) / sizeof(symbols[0]);
    return symbols;
}

const char *kiln_cu_fill(struct kiln_cu_api *api, kiln_cu_resolver resolve, void *user) {
    const char *missing = NULL;
    size_t i;
    memset(api, 0, sizeof(*api));
    for (i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *function = resolve(symbols[i].name, user);
        if (function == NULL && symbols[i].need == KILN_CU_REQUIRED && missing == NULL) {
            missing = symbols[i].name;
        }
        /* Copied as bytes: C knows no conversion from a data pointer to a function pointer. */
        memcpy((char *)api + symbols[i].offset, &function, sizeof(function));
    }
    return missing;
}

#ifdef _WIN32

/* Where the headers are older than Windows 8. */
#ifndef LOAD_LIBRARY_SEARCH_SYSTEM32
#define LOAD_LIBRARY_SEARCH_SYSTEM32 0x00000800
#endif

void *kiln_cu_open(const char *path, char *reason, size_t reason_size) {
    /* A bare name means the system's library, and not one beside the program or in the current directory. */
    DWORD flags = strpbrk(path, "\\/:") == NULL ? LOAD_LIBRARY_SEARCH_SYSTEM32 : 0;
    HMODULE library = LoadLibraryExA(path, NULL, flags);
    if (library == NULL) {
        snprintf(reason, reason_size, "LoadLibraryEx: error %lu", (unsigned long)GetLastError());
    }
    return (void *)library;
}

void *kiln_cu_lookup(const char *name, void *library) {
    return (void *)GetProcAddress((HMODULE)library, name);
}

#else

void *kiln_cu_open(const char *path, char *reason, size_t reason_size) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *error = dlerror();
        snprintf(reason, reason_size, "%s", error != NULL ? error : "dlopen gave no reason");
    }
    return library;
}

void *kiln_cu_lookup(const char *name, void *library) {
    return dlsym(library, name);
}

#endif
