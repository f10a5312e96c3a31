;; A guest whose allocator gets no memory and says so: with status 1 and no message.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: user function `f` (sha256:...), record batch 0, row 0 of 5: it failed without a message
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (drop (memory.grow (i32.const 1000)))
    (return (i32.const 1))
    i32.const 0))
