;; A guest that takes 64 KiB for good at each call: it is dropped before it has much.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; calls: 500
;; expect: [0, 1, 2, 3, 4]
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (local $row i32) (local $x i64)
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $row) (i32.load offset=8 (local.get $call))))
        (local.set $x (i64.load (i32.add (i32.mul (local.get $row) (i32.const 8))
          (i32.load offset=24 (i32.load offset=16 (local.get $call))))))
        (i64.store (i32.add (i32.mul (local.get $row) (i32.const 8))
            (i32.load offset=24 (i32.load offset=20 (local.get $call))))
          (local.get $x))
        (local.set $row (i32.add (local.get $row) (i32.const 1)))
        (br $next)))
    (drop (memory.grow (i32.const 1)))
    i32.const 0))
