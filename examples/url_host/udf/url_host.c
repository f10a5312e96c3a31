/* The host of a URL, without user, port and brackets; NULL where there is none. */
#include "udf1.h"

UDF1_META({"abi": 1, "name": "url_host", "kind": "scalar",
           "args": [{"name": "url", "type": "utf8"}], "returns": "utf8",
           "doc": "The host of a URL; NULL where there is none.",
           "examples": [
               {"call": "url_host('https://me@example.com:8080/a?b=c')", "result": "'example.com'"},
               {"call": "url_host('no url')", "result": "NULL"}]})

/* Where the host starts and how long it is; 0 where there is none. */
static uint32_t find_host(const uint8_t *url, uint32_t length, uint32_t *start) {
    uint32_t at = 0;
    while (at + 3 <= length && !(url[at] == ':' && url[at + 1] == '/' && url[at + 2] == '/')) {
        at++;
    }
    if (at == 0 || at + 3 > length) {
        return 0;
    }
    uint32_t from = at + 3, to = from;
    while (to < length && url[to] != '/' && url[to] != '?' && url[to] != '#') {
        if (url[to] == '@') {
            from = to + 1;
        }
        to++;
    }
    uint32_t end = from;
    if (from < to && url[from] == '[') {
        from++;
        end = from;
        while (end < to && url[end] != ']') {
            end++;
        }
    } else {
        while (end < to && url[end] != ':') {
            end++;
        }
    }
    *start = from;
    return end - from;
}

UDF1_SCALAR(url_host) {
    udf1_column *urls = udf1_arg(call, 0), *ret = udf1_ret(call);
    uint32_t *offsets = udf1_values(ret);
    uint8_t *out = call->scratch;
    uint32_t used = 0;
    for (uint32_t row = 0; row < call->rows; row++) {
        if (udf1_is_valid(ret, row)) {
            uint32_t length, start;
            const uint8_t *url = udf1_bytes(urls, row, &length);
            uint32_t n = find_host(url, length, &start);
            if (n == 0) {
                udf1_set_null(ret, row);
            } else {
                if (n > call->scratch_len - used) {
                    return udf1_fail(call, row, "too much text for one call");
                }
                __builtin_memcpy(out + used, url + start, n);
                used += n;
            }
        }
        offsets[row + 1] = used;
    }
    ret->buf1 = out;
    ret->buf1_len = used;
    return UDF1_OK;
}
