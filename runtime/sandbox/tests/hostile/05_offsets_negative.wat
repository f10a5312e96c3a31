;; An offset below zero.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"utf8"}
;; expect: user function `f` (sha256:...), record batch 0 of 5 rows: it gave back a bad result: offset 0 is -1, after 0
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (local $ret i32)
    (local.set $ret (i32.load offset=20 (local.get $call)))
    (i32.store offset=0 (i32.load offset=24 (local.get $ret)) (i32.const -1))
    (i32.store offset=4 (i32.load offset=24 (local.get $ret)) (i32.const 3))
    (i32.store offset=8 (i32.load offset=24 (local.get $ret)) (i32.const 3))
    (i32.store offset=12 (i32.load offset=24 (local.get $ret)) (i32.const 5))
    (i32.store offset=16 (i32.load offset=24 (local.get $ret)) (i32.const 5))
    (i32.store offset=20 (i32.load offset=24 (local.get $ret)) (i32.const 5))
    (i32.store offset=32 (local.get $ret) (i32.const 64))
    (i32.store offset=36 (local.get $ret) (i32.const 5))
    i32.const 0))
