;; A function that calls itself without end.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: user function `f` (sha256:...), record batch 0, row 0 of 5: it calls itself too deeply (stack overflow)
(module
  (memory (export "memory") 1)
  (func $deeper (param i64) (result i64)
    (i64.add (i64.const 1) (call $deeper (i64.add (local.get 0) (i64.const 1)))))
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (drop (call $deeper (i64.const 1)))
    i32.const 0))
