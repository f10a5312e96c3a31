;; The same with the policy that makes such rows NULL.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; on_error: null
;; expect: [-20, -30, -60, NULL, 60]
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
          (i64.div_s (i64.const 60) (i64.sub (local.get $x) (i64.const 3))))
        (local.set $row (i32.add (local.get $row) (i32.const 1)))
        (br $next)))
    i32.const 0))
