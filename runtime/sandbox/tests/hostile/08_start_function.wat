;; A start function that spins.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: it has a start function, which would run before any limit is set; do the work in `udf1_init`
(module
  (memory (export "memory") 1)
  (func $spin (loop $again (br $again)))
  (start $spin)
  (func (export "udf1_call_f") (param $call i32) (result i32)

    i32.const 0))
