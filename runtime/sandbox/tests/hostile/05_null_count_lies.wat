;; A count of nulls and a length that are not true: both are ignored.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: [0, 0, 0, 0, 0]
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (local $ret i32)
    (local.set $ret (i32.load offset=20 (local.get $call)))
    (i32.store offset=8 (local.get $ret) (i32.const 999))
    (i32.store offset=12 (local.get $ret) (i32.const 5))
    (i32.store offset=24 (local.get $ret) (i32.const 0xfffffff0))
    (i32.store offset=16 (local.get $ret) (i32.const 0xfffffff0))
    i32.const 0))
