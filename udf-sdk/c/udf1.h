/* ABI 1 of user functions, for C. One header, no library; memory.h-like calls are the
 * compiler's builtins.
 *
 *   #include "udf1.h"
 *
 *   UDF1_META({"abi": 1, "name": "add", "kind": "scalar",
 *              "args": [{"name": "a", "type": "i64"}, {"name": "b", "type": "i64"}],
 *              "returns": "i64"})
 *   UDF1_SCALAR(add) {
 *       const int64_t *a = udf1_values(udf1_arg(call, 0)), *b = udf1_values(udf1_arg(call, 1));
 *       int64_t *sum = udf1_values(udf1_ret(call));
 *       for (uint32_t row = 0; row < call->rows; row++) {
 *           sum[row] = a[udf1_at(udf1_arg(call, 0), row)] + b[udf1_at(udf1_arg(call, 1), row)];
 *       }
 *       return UDF1_OK;
 *   }
 *
 * Build:
 *   clang --target=wasm32 -msimd128 -O3 -nostdlib -ffreestanding -Wl,--no-entry
 *         -Wl,--strip-debug -Wl,-z,stack-size=131072 add.c -o add.wasm
 */
#ifndef UDF1_H
#define UDF1_H

#include <stdint.h>

/* What an entry point returns. */
enum { UDF1_OK = 0, UDF1_FAILED = 1 };

/* Bits of udf1_column.flags. */
enum { UDF1_NULLABLE = 1, UDF1_HAS_VALIDITY = 2, UDF1_CONSTANT = 4, UDF1_UTF8_CHECKED = 8 };

/* Bits of udf1_call.flags. With UDF1_NULL_ON_ERROR a function may make the row NULL and go
 * on; it then counts such rows in error->code and leaves the first one's row and message. */
enum { UDF1_STRICT = 1, UDF1_DETERMINISTIC = 2, UDF1_NULL_ON_ERROR = 8 };

/* A column: Arrow's buffers, each with its length in bytes. Offsets start at 0, a bitmap's
 * first bit is row 0. Buffers are 64-byte aligned and padded to 64. */
typedef struct udf1_column {
    uint16_t type, flags;
    uint8_t precision;
    int8_t scale;
    uint16_t unit;
    uint32_t length, nulls;
    uint8_t *validity;
    uint32_t validity_len;
    void *buf0; /* values, or offsets of values of variable width */
    uint32_t buf0_len;
    uint8_t *buf1; /* their bytes; of a result, the function sets it and its length */
    uint32_t buf1_len;
    struct udf1_column *children;
    uint32_t n_children;
    uint32_t reserved[4];
} udf1_column;

/* What is wrong, and with which row; 0xffffffff is none. */
typedef struct udf1_error {
    uint32_t row, code, message_len;
    char message[500];
} udf1_error;

/* The one argument of every entry point. */
typedef struct udf1_call {
    uint32_t abi, flags, rows, n_args;
    udf1_column *args, *ret;
    udf1_error *error;
    uint32_t state;   /* of an aggregate: set by `init`, given back by the host */
    uint8_t *scratch; /* room for the bytes of a result, until the function returns */
    uint32_t scratch_len;
    uint64_t batch, seed;
    int64_t query_time; /* microseconds since 1970 */
} udf1_call;

_Static_assert(sizeof(udf1_column) == 64 && sizeof(udf1_call) == 64, "wasm32 is the target");
_Static_assert(sizeof(udf1_error) == 512, "wasm32 is the target");

/* A metadata record. The JSON is written as it is, without quotes around it. */
#define UDF1_META(...) UDF1_META_(UDF1_TEXT_(__VA_ARGS__))
#define UDF1_TEXT_(...) #__VA_ARGS__
#define UDF1_META_(text) UDF1_SECTION_(text)
#define UDF1_SECTION_(text)                                                                     \
    __asm__(".section .custom_section.udf1.meta,\"\",@\n"                                       \
            ".int32 2f-1f\n"                                                                    \
            "1: .ascii " #text "\n"                                                             \
            "2:\n"                                                                              \
            ".text\n");

/* The entry point of a scalar function; its body follows and has `udf1_call *call`. */
#define UDF1_SCALAR(name)                                                                       \
    __attribute__((export_name("udf1_call_" #name))) uint32_t udf1_call_##name(udf1_call *call)

static inline udf1_column *udf1_arg(udf1_call *call, uint32_t i) { return &call->args[i]; }
static inline udf1_column *udf1_ret(udf1_call *call) { return call->ret; }
static inline void *udf1_values(const udf1_column *column) { return column->buf0; }

/* Where a row's element is: the first where one stands for all rows. */
static inline uint32_t udf1_at(const udf1_column *column, uint32_t row) {
    return column->flags & UDF1_CONSTANT ? 0 : row;
}

/* Whether a row is not NULL. Of the result of a strict function: whether no argument is. */
static inline int udf1_is_valid(const udf1_column *column, uint32_t row) {
    uint32_t at = udf1_at(column, row);
    return !(column->flags & UDF1_HAS_VALIDITY) || (column->validity[at / 8] >> (at % 8) & 1);
}

/* Makes a row of the result NULL. */
static inline void udf1_set_null(udf1_column *ret, uint32_t row) {
    ret->validity[row / 8] &= (uint8_t)~(1u << (row % 8));
}

/* The bytes of a row of text, and their number. */
static inline const uint8_t *udf1_bytes(const udf1_column *column, uint32_t row, uint32_t *length) {
    const uint32_t *offsets = (const uint32_t *)column->buf0 + udf1_at(column, row);
    *length = offsets[1] - offsets[0];
    return column->buf1 + offsets[0];
}

/* Fails with a message; returns what the entry point has to return. */
static inline uint32_t udf1_fail(udf1_call *call, uint32_t row, const char *message) {
    uint32_t n = 0;
    while (n < sizeof call->error->message && message[n]) {
        call->error->message[n] = message[n];
        n++;
    }
    call->error->row = row;
    call->error->code = 1;
    call->error->message_len = n;
    return UDF1_FAILED;
}

#endif
