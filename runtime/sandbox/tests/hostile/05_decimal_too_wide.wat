;; A decimal with more digits than its type has.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"decimal128(3,0)"}
;; expect: user function `f` (sha256:...), record batch 0 of 5 rows: it gave back a bad result: 1000 in row 1 has more digits than decimal128(3,0)
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (local $ret i32)
    (local.set $ret (i32.load offset=20 (local.get $call)))
    (memory.fill (i32.load offset=24 (local.get $ret)) (i32.const 0) (i32.const 80))
    (i64.store offset=16 (i32.load offset=24 (local.get $ret)) (i64.const 1000))
    i32.const 0))
