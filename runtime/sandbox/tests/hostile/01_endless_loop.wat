;; A function that never ends.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: user function `f` (sha256:...), record batch 0 of 5 rows: it ran longer than its time limit of 50 ms for a record batch
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (loop $again (br $again))
    i32.const 0))
