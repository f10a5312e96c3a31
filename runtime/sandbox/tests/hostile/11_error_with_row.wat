;; An error that names its row.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: user function `f` (sha256:...), record batch 0, row 2 of 5: not a row for me
(module
  (memory (export "memory") 1)
  (data (i32.const 64) "not a row\nfor me")
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (local $error i32)
    (local.set $error (i32.load offset=24 (local.get $call)))
    (i32.store (local.get $error) (i32.const 2))
    (i32.store offset=4 (local.get $error) (i32.const 1))
    (i32.store offset=8 (local.get $error) (i32.const 16))
    (memory.copy (i32.add (local.get $error) (i32.const 12)) (i32.const 64) (i32.const 16))
    (return (i32.const 1))
    i32.const 0))
