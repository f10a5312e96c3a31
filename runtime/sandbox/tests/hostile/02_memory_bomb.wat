;; A function that takes memory until it gets none, and aborts as allocators do.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: user function `f` (sha256:...), record batch 0 of 5 rows: it asked for 9 MiB of memory and may have 8 MiB
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (loop $more
      (memory.grow (i32.const 16))
      (br_if $more (i32.ne (i32.const -1))))
    unreachable
    i32.const 0))
