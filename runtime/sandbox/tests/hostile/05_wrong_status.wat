;; A status that ABI 1 does not know.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: user function `f` (sha256:...), record batch 0 of 5 rows: it gave back a bad result: status 7, which is neither 0 (done) nor 1 (failed)
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (return (i32.const 7))
    i32.const 0))
