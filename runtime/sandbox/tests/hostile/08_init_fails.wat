;; An initialisation that fails.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: user function `f` (sha256:...), record batch 0 of 5 rows: `udf1_init` returned 3
(module
  (memory (export "memory") 1)
  (func (export "udf1_init") (result i32) (i32.const 3))
  (func (export "udf1_call_f") (param $call i32) (result i32)

    i32.const 0))
