;; Text at an odd place that overlaps the input: it is copied out before anything else happens.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"utf8"}
;; expect: ["", "", "", "", "\u{2}\0\0"]
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (local $ret i32)
    (local.set $ret (i32.load offset=20 (local.get $call)))
    (i32.store offset=32 (local.get $ret)
      ;; 16 bytes into the values of the argument, where row 2 stands.
      (i32.add (i32.const 16)
        (i32.load offset=24 (i32.load offset=16 (local.get $call)))))
    (i32.store offset=36 (local.get $ret) (i32.const 3))
    (i32.store offset=0 (i32.load offset=24 (local.get $ret)) (i32.const 0))
    (i32.store offset=4 (i32.load offset=24 (local.get $ret)) (i32.const 0))
    (i32.store offset=8 (i32.load offset=24 (local.get $ret)) (i32.const 0))
    (i32.store offset=12 (i32.load offset=24 (local.get $ret)) (i32.const 0))
    (i32.store offset=16 (i32.load offset=24 (local.get $ret)) (i32.const 0))
    (i32.store offset=20 (i32.load offset=24 (local.get $ret)) (i32.const 3))

    i32.const 0))
