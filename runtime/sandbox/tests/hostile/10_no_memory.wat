;; No memory.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: it needs exactly one memory of its own
(module
  (func (export "udf1_call_f") (param i32) (result i32) (i32.const 0)))
