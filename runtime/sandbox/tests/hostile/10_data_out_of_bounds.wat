;; Initial data outside of the memory.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: user function `f` (sha256:...), record batch 0 of 5 rows: it trapped: an access outside of its memory
(module
  (memory (export "memory") 1)
  (data (i32.const 65535) "ab")
  (func (export "udf1_call_f") (param $call i32) (result i32)

    i32.const 0))
