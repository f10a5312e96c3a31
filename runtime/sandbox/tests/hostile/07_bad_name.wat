;; A name that SQL could not call.
;; meta: {"abi":1,"name":"f; drop table x","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: metadata record 1: `f; drop table x` is not a function name; use up to 63 of a to z, 0 to 9 and _, starting with a letter or _
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)

    i32.const 0))
