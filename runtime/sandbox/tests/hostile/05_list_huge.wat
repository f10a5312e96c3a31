;; A list that says it has two billion items.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"list(i64)"}
;; expect: user function `f` (sha256:...), record batch 0 of 5 rows: it gave back a bad result: 16 bytes of values where 17179869176 are needed
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (local $ret i32)
    (local.set $ret (i32.load offset=20 (local.get $call)))
    (i32.store offset=0 (i32.load offset=24 (local.get $ret)) (i32.const 0))
    (i32.store offset=4 (i32.load offset=24 (local.get $ret)) (i32.const 0))
    (i32.store offset=8 (i32.load offset=24 (local.get $ret)) (i32.const 0))
    (i32.store offset=12 (i32.load offset=24 (local.get $ret)) (i32.const 0))
    (i32.store offset=16 (i32.load offset=24 (local.get $ret)) (i32.const 0))
    (i32.store offset=20 (i32.load offset=24 (local.get $ret)) (i32.const 2147483647))
    (i32.store offset=8 (i32.load offset=40 (local.get $ret)) (i32.const 0x7fffffff))
    (i32.store offset=24 (i32.load offset=40 (local.get $ret)) (i32.const 64))
    (i32.store offset=28 (i32.load offset=40 (local.get $ret)) (i32.const 16))
    i32.const 0))
