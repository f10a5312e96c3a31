;; A load one byte past the end of its memory, which a slot that was larger before must not give.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; calls: 3
;; expect: user function `f` (sha256:...), record batch 0, row 0 of 5: it trapped: an access outside of its memory
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (drop (i32.load8_u offset=0 (i32.mul (memory.size) (i32.const 65536))))
    i32.const 0))
